// Which colour a tenant has: one of six in the order in which they were first seen, so that it stays; later ones share
// a seventh. A colour never stands alone: names are beside it.

const seen = new Map();

/** The class that gives a tenant its colour, also the name of that colour. */
export function tenantColour(name) {
  if (!seen.has(name)) seen.set(name, seen.size < 6 ? `c${seen.size}` : "other");
  return seen.get(name);
}

/** Gives tenants their colours by name, those that are met together, so that two viewers see the same. */
export const meet = (names) => [...new Set(names)].sort().forEach(tenantColour);
