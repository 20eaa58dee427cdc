// A plain chat with the model, to see what the server makes of it: beside each answer stand its figures and a link to why
// it took as long as it did. What is said is in this module's memory and nowhere else; text is shown as text.

import { Fault, open } from "./api.js";
import { classes, html, store, useEffect, useLayoutEffect, useRef, useState, useStore } from "./lib.js";
import { named, t } from "./i18n.js";
import { count, NONE, number, seconds } from "./format.js";
import { config } from "./config.js";
import { Help } from "./help.js";
import { href } from "./router.js";
import { events } from "./stream.js";

/** Turns of the talk: `{role, content, thought, state, figures, fault, id}`. */
const talk = store([]);
const settings = store({ system: "", temperature: "", max_tokens: "512" });
let key = "", stopping = null;

const SSE_DONE = "[DONE]";

/** Changes the newest turn. */
const answer = (made) => talk.set((turns) => [...turns.slice(0, -1), { ...turns.at(-1), ...made }]);

/** Whether a turn is part of what the model is told: a message that got no answer is not, and neither is that it got none. */
const heard = (turn, index, turns) => (turn.role === "user" ? turns[index + 1] : turn)?.content !== "";

async function send(text, model) {
  const { system, temperature, max_tokens: most } = settings.get();
  const before = talk.get().filter(heard).map(({ role, content }) => ({ role, content }));
  talk.set((turns) => [...turns, { role: "user", content: text }, { role: "assistant", content: "", thought: "", state: "waiting", figures: {} }]);
  const own = (stopping = new AbortController()), begun = performance.now();
  const body = {
    model, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
    messages: [...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: text }],
    ...(temperature === "" ? {} : { temperature: Number(temperature) }), ...(most === "" ? {} : { max_completion_tokens: Number(most) }),
  };
  try {
    const given = await open("v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal: own.signal,
      headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) },
      quiet: true,
    });
    answer({ id: given.headers.get("x-ekiden-request-id") });
    await take(given.body, begun);
    answer({ state: "done" });
  } catch (error) {
    const stopped = error.name === "AbortError";
    answer({ state: stopped ? "stopped" : "failed", fault: stopped ? null : error.message });
  } finally {
    if (stopping === own) stopping = null;
  }
}

/** Reads the answer's events; figures are counted as they come, so that a stopped answer has them too. */
async function take(body, begun) {
  let first = null;
  for await (const { data } of events(body)) {
    if (data === SSE_DONE) return;
    const told = JSON.parse(data);
    if (told.error) throw new Fault(told.error.message);
    const [choice] = told.choices ?? [], delta = choice?.delta ?? {}, now = performance.now();
    const said = (delta.content ?? "") + (delta.reasoning_content ?? "");
    if (said && first === null) first = now;
    const turn = talk.get().at(-1), figures = { ...turn.figures, total: (now - begun) / 1000 };
    if (first !== null) Object.assign(figures, { ttft: (first - begun) / 1000, since: (now - first) / 1000 });
    if (told.usage) {
      figures.tokens = told.usage.completion_tokens;
      figures.prompt = told.usage.prompt_tokens;
      figures.cached = told.usage.prompt_tokens_details?.cached_tokens ?? 0;
      if (figures.firstTokens === undefined && figures.tokens > 0) figures.firstTokens = figures.tokens;
    }
    if (choice?.finish_reason) figures.end = choice.finish_reason;
    answer({ content: turn.content + (delta.content ?? ""), thought: turn.thought + (delta.reasoning_content ?? ""), state: first === null ? "waiting" : "talking", figures });
  }
}

export function View() {
  const turns = useStore(talk), known = useStore(config), field = useRef(), log = useRef(), end = useRef(true);
  const busy = ["waiting", "talking"].includes(turns.at(-1)?.state);
  useLayoutEffect(() => {
    if (end.current) log.current.scrollTop = log.current.scrollHeight; // who reads further up is left there
  }, [turns]);
  useEffect(() => field.current.focus({ preventScroll: true }), []);
  const submit = (event) => {
    event?.preventDefault();
    const text = field.current.value;
    if (busy || !text.trim() || !known) return;
    field.current.value = "";
    end.current = true;
    send(text, known.model);
  };
  const again = () => {
    const asked = talk.get().findLast((turn) => turn.role === "user");
    talk.set((all) => all.slice(0, all.lastIndexOf(asked)));
    send(asked.content, known.model);
  };
  const typed = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const pressed = (event) => busy && event.key === "Escape" && !event.defaultPrevented && stopping?.abort();
  return html`<div class="try" onKeyDown=${pressed}><h1>${t("try.title")}</h1><p class="soft">${t("try.about")}</p>
    <${Settings} />
    <div class="log" ref=${log} tabindex="0" role="log" aria-label=${t("try.log")} aria-busy=${busy} onScroll=${() => (end.current = log.current.scrollTop + log.current.clientHeight > log.current.scrollHeight - 30)}>
      ${turns.length === 0 && html`<p class="soft">${t("try.empty")}</p>`}${turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} />`)}</div>
    <form class="say" onSubmit=${submit}><label><span>${t("try.message")}</span><textarea ref=${field} rows="3" onKeyDown=${typed} dir="auto" aria-describedby="try-keys"></textarea></label>
      <p class="buttons">${busy ? html`<button type="button" class="danger" onClick=${() => stopping?.abort()}>${t("try.stop")}</button>` : html`<button type="submit" class="main" disabled=${!known}>${t("try.send")}</button>`}
        ${!busy && turns.length > 0 && html`<button type="button" onClick=${again}>${t("try.again")}</button><button type="button" onClick=${() => (talk.set([]), field.current.focus())}>${t("try.clear")}</button>`}
        <small id="try-keys">${t("try.keys")}</small></p></form></div>`;
}

function Settings() {
  const now = useStore(settings), known = useStore(config);
  const set = (name) => (event) => settings.set({ ...now, [name]: event.target.value });
  return html`<details><summary>${t("try.settings")}</summary><div class="row">
    <label class="long">${t("try.system")}<textarea rows="2" dir="auto" value=${now.system} onInput=${set("system")}></textarea></label>
    <label><${Help} of="temperature">${t("try.temperature")}<//><input type="number" min="0" max="2" step="0.1" value=${now.temperature} placeholder=${t("try.models_own")} aria-label=${t("try.temperature")} onInput=${set("temperature")} /></label>
    <label>${t("try.max_tokens")}<input type="number" min="1" step="1" value=${now.max_tokens} placeholder=${t("try.no_limit")} onInput=${set("max_tokens")} /></label>
    ${known?.has_keys && html`<label>${t("try.key")}<input type="password" autocomplete="off" name="ekiden-chat-key" onInput=${(event) => (key = event.target.value.trim())} aria-describedby="try-key" /><small id="try-key">${t("try.key_what")}</small></label>`}
  </div></details>`;
}

function Turn({ turn }) {
  const user = turn.role === "user";
  return html`<article class=${classes("turn", turn.role)} aria-label=${t(user ? "try.you" : "try.model")}><h2>${t(user ? "try.you" : "try.model")}</h2>
    ${turn.thought && html`<details><summary>${t("try.thought")}</summary><div class="text" dir="auto">${turn.thought}</div></details>`}
    <div class="text" dir="auto">${turn.content}${turn.state === "waiting" && html`<span class="soft">${t("try.waiting")}</span>`}</div>
    ${turn.fault && html`<p class="bad" role="alert">${turn.fault}</p>`}${!user && turn.state !== "waiting" && html`<${Figures} turn=${turn} />`}</article>`;
}

function Figures({ turn }) {
  const { ttft, since, tokens, firstTokens, cached, prompt, end } = turn.figures;
  const pace = since > 0 && tokens > firstTokens ? (tokens - firstTokens) / since : null;
  return html`<dl class="figures">
    <div><dt><${Help} of="try_ttft">${t("try.ttft")}<//></dt><dd>${seconds(ttft)}</dd></div>
    <div><dt><${Help} of="try_pace">${t("try.pace")}<//></dt><dd>${number(pace)}</dd></div>
    <div><dt>${t("try.tokens")}</dt><dd>${count(tokens)}</dd></div>
    <div><dt><${Help} of="try_cached">${t("try.cached")}<//></dt><dd>${cached === undefined ? NONE : t("try.of", { n: count(cached), all: count(prompt) })}</dd></div>
    <div><dt>${t("try.end")}</dt><dd>${turn.state === "talking" ? t("try.talking") : named("end", turn.state === "stopped" ? "stopped" : end ?? (turn.state === "failed" ? "error" : "stop"))}</dd></div>
    ${turn.id && html`<div><dt class="unseen">${t("try.why")}</dt><dd><a href=${href(["request", turn.id])}>${t("try.why")}</a></dd></div>`}</dl>`;
}
