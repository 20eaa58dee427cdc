// What the programs of this folder share: as report.py beside it.
import { readFileSync } from 'node:fs';

export const URL = process.env.EKIDEN_URL;
export const MODEL = process.env.EKIDEN_MODEL;
export const AGENT_URL = process.env.EKIDEN_AGENT_URL;
export const AGENT_MODEL = process.env.EKIDEN_AGENT_MODEL;
export const QUESTION = 'Why is the sky blue?';
export const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['Oslo', 'Kyoto'] } },
  required: ['city'],
  additionalProperties: false,
};

export const weather = (city) => `${city}: 21 degrees`;

export function check(value, message) {
  if (!value) throw new Error(message);
}

export async function run(name, features) {
  const { version } = JSON.parse(readFileSync(new globalThis.URL(`node_modules/${name}/package.json`, import.meta.url)));
  console.log(JSON.stringify({ package: name, version }));
  let failed = false;
  for (const [feature, tryIt] of Object.entries(features)) {
    let error = null;
    try {
      await tryIt();
    } catch (problem) {
      failed = true;
      console.error(problem);
      error = String(problem).slice(0, 500);
    }
    console.log(JSON.stringify({ feature, error }));
  }
  process.exit(failed ? 1 : 0);
}
