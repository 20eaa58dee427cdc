// Server-Sent Events by `fetch`, so that the key can go with them. A stream that breaks is opened again with the id of
// the last event; the waits between the tries grow. A stream that is silent for too long counts as broken: the server
// sends a comment every few seconds. A page that nobody sees lets go of its stream after a while, and takes it up again.

import { Fault, open } from "./api.js";
import { onKey } from "./key.js";

const FIRST_WAIT = 500, LONGEST_WAIT = 15_000;
const SILENCE = 20_000;
const UNSEEN = 60_000;

/**
 * Reads `address()` until `close()` is called. `onEvent({event, data, id})` gets each event, its data parsed;
 * `onPhase({phase, fault, retryAt})` says how it goes: "opening", "open", "waiting" (to try again at `retryAt`, by
 * performance.now), "locked" (it needs a key), "unseen".
 */
export function stream(address, { onEvent, onPhase }) {
  let stopped = false, tries = 0, lastId = null, heard = 0, controller = null, timer = null, hidden = null;

  async function run() {
    clearTimeout(timer);
    controller?.abort();
    const own = (controller = new AbortController());
    onPhase({ phase: "opening" });
    try {
      const headers = { accept: "text/event-stream", ...(lastId === null ? {} : { "last-event-id": lastId }) };
      const answer = await open(address(), { headers, signal: own.signal });
      heard = performance.now();
      onPhase({ phase: "open" });
      for await (const event of events(answer.body, () => (heard = performance.now()))) {
        if (own !== controller) return;
        tries = 0;
        lastId = event.id ?? lastId;
        onEvent({ ...event, data: JSON.parse(event.data) });
      }
      again(own, new Fault(""));
    } catch (error) {
      if (error.name !== "AbortError" || own === controller) again(own, error);
    }
  }

  function again(own, fault) {
    if (stopped || own !== controller) return;
    controller = null;
    if (fault.status === 401 || fault.status === 403) return onPhase({ phase: "locked", fault });
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** tries++) * (0.75 + Math.random() / 2);
    onPhase({ phase: "waiting", fault, retryAt: performance.now() + wait });
    timer = setTimeout(run, wait);
  }

  const watchdog = setInterval(() => {
    if (controller && heard && performance.now() - heard > SILENCE) {
      const own = controller;
      own.abort();
      again(own, new Fault(""));
    }
  }, 2_000);

  function seen() {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(() => {
        stop();
        onPhase({ phase: "unseen" });
      }, UNSEEN);
    } else if (!controller || performance.now() - heard > SILENCE / 4) {
      tries = 0;
      run();
    }
  }

  function stop() {
    const own = controller;
    controller = null;
    clearTimeout(timer);
    own?.abort();
  }

  const unwatch = onKey(() => {
    tries = 0;
    run();
  });
  document.addEventListener("visibilitychange", seen);
  addEventListener("online", seen);
  run();
  return {
    /** From the beginning of another address, and without what the last one had got to. */
    restart() {
      lastId = null;
      tries = 0;
      run();
    },
    close() {
      stopped = true;
      stop();
      clearInterval(watchdog);
      clearTimeout(hidden);
      unwatch();
      document.removeEventListener("visibilitychange", seen);
      removeEventListener("online", seen);
    },
  };
}

/** The events of a body: `{event, data, id}`. `onBytes` is called whenever something comes, comments too. */
export async function* events(body, onBytes = () => {}) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "", event = {}, lines = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      onBytes();
      rest += decoder.decode(value, { stream: true });
      const found = rest.split(/\r\n|\n|\r(?!$)/);
      rest = found.pop();
      for (const line of found) {
        if (line === "") {
          if (lines.length) yield { event: "message", ...event, data: lines.join("\n") };
          event = {};
          lines = [];
          continue;
        }
        const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (name === "data") lines.push(value);
        else if (name === "event" || name === "id") event[name] = value;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
