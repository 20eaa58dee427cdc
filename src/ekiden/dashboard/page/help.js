// A word with its meaning: unit and formula come up on hover and on focus, and go with Escape (WCAG 1.4.13).

import { classes, html, useLayoutEffect, useName, useRef, useState } from "./lib.js";
import { has, t } from "./i18n.js";

/**
 * The children, and `help.NAME` of the words (or `text`) as their explanation: ``<${Help} of="ttft">TTFT<//>``. Without
 * such words the children alone.
 */
export function Help({ of, text, children, class: extra }) {
  const words = text ?? (has(`help.${of}`) ? t(`help.${of}`) : null);
  const [open, setOpen] = useState(false), name = useName("help"), word = useRef(), tip = useRef();
  useLayoutEffect(() => { // not after the next painting: Escape may come before
    if (!open) return undefined;
    const close = (event) => event.key === "Escape" && (event.stopPropagation(), setOpen(false));
    const away = (event) => tip.current?.contains(event.target) || word.current?.contains(event.target) || setOpen(false);
    addEventListener("keydown", close, true);
    addEventListener("scroll", away, true);
    return () => {
      removeEventListener("keydown", close, true);
      removeEventListener("scroll", away, true);
    };
  }, [open]);
  useLayoutEffect(() => open && place(tip.current, word.current), [open, words]);
  if (!words) return html`<span class=${extra}>${children}</span>`;
  const show = () => setOpen(true), hide = () => setOpen(false);
  return html`<span class=${classes("help", extra)} onMouseEnter=${show} onMouseLeave=${hide}>
    <button type="button" ref=${word} aria-describedby=${name} onFocus=${show} onBlur=${hide} onClick=${show}>${children}</button>
    <span role="tooltip" id=${name} ref=${tip} hidden=${!open}>${words}</span>
  </span>`;
}

/** Below the word or above it, inside the window. */
function place(tip, word) {
  const at = word.getBoundingClientRect(), room = document.documentElement.clientWidth;
  tip.style.maxWidth = `${Math.min(420, room - 16)}px`;
  const size = tip.getBoundingClientRect();
  const below = at.bottom + size.height + 8 < innerHeight || at.top < size.height + 8;
  tip.style.left = `${Math.max(8, Math.min(at.left, room - size.width - 8))}px`;
  tip.style.top = `${below ? at.bottom + 2 : at.top - size.height - 2}px`;
}
