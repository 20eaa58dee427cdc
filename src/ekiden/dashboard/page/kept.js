// What a viewer chose for this browser: language and theme. Keys, requests and answers are never kept.

const NAMES = ["language", "theme"];

export function kept(name) {
  try {
    return localStorage.getItem(`ekiden.${name}`);
  } catch {
    return null; // storage is switched off: the choice lasts as long as the page
  }
}

export function keep(name, value) {
  if (!NAMES.includes(name)) throw new Error(`${name} may not be kept`);
  try {
    localStorage.setItem(`ekiden.${name}`, value);
  } catch {
    // as above
  }
}
