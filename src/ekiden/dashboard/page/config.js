// What `data/config` says of the server and of the key: what views need besides the frames.

import { get } from "./api.js";
import { store } from "./lib.js";

/** The answer; null until it is there. */
export const config = store(null);

/** Asks again: the key, the server or the engine may be another one. */
export async function configure() {
  try {
    config.set(await get("config"));
  } catch {
    // the line of the connection says what is wrong, and it is asked again when that changes
  }
}
