// The view library in one place, and values that views can watch.

import { useEffect, useLayoutEffect, useState } from "./vendor/preact-htm.js";

export * from "./vendor/preact-htm.js";

/** A value that views watch: `get`, `set` (a value, or a function of the one before), `watch` (returns its undoing). */
export function store(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      const made = typeof next === "function" ? next(value) : next;
      if (made === value) return;
      value = made;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

/** The store's value; the view is drawn again when it changes. */
export function useStore(watched) {
  const [value, setValue] = useState(watched.get());
  // At once, not after the next picture: until then what changes would be missed, and an error elsewhere would end it.
  useLayoutEffect(() => {
    setValue(() => watched.get());
    return watched.watch((next) => setValue(() => next));
  }, [watched]);
  return value;
}

/** Calls `work` every `milliseconds` while the view is there. */
export function useInterval(work, milliseconds) {
  useEffect(() => {
    const timer = setInterval(work, milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

let numbered = 0;

/** A name for an element's `id` that nothing else on the page has. */
export function useName(what) {
  return useState(() => `${what}-${++numbered}`)[0];
}

/** Class names, those that are not set left out. */
export const classes = (...names) => names.filter(Boolean).join(" ");
