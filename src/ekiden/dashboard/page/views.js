// The views of the page, by the name in their address. Each is loaded when it is first looked at, and exports its
// component as `View`, which is given `rest` and `query` of the address.

export const VIEWS = {
  live: () => import("./live.js"),
  guard: () => import("./guard.js"),
  controls: () => import("./controls.js"),
  request: () => import("./request.js"),
  requests: () => import("./requests.js"),
  compare: () => import("./compare.js"),
  releases: () => import("./releases.js"),
  try: () => import("./try.js"),
};

/** Those of the navigation, in order. */
export const SHOWN = ["live", "requests", "compare", "guard", "controls", "releases", "try"];
