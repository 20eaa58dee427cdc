// The `@anthropic-ai/sdk` package for JavaScript: messages.
import Anthropic from '@anthropic-ai/sdk';
import { check, MODEL, QUESTION, run, URL, WEATHER, weather } from './report.mjs';

const client = new Anthropic({ baseURL: URL, apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: QUESTION }];
const options = { model: MODEL, max_tokens: 32 };
const tool = { name: 'weather', description: 'The weather of a city.', input_schema: WEATHER };

await run('@anthropic-ai/sdk', {
  chat: async () => {
    check((await client.messages.create({ messages, ...options })).content[0].text, 'no text');
  },
  stream: async () => {
    check(await client.messages.stream({ messages, ...options }).finalText(), 'no text');
  },
  tools: async () => {
    const first = await client.messages.create({
      messages, ...options, tools: [tool], tool_choice: { type: 'any', disable_parallel_tool_use: true },
    });
    const call = first.content.find((block) => block.type === 'tool_use');
    const result = { type: 'tool_result', tool_use_id: call.id, content: weather(call.input.city) };
    const history = [...messages, { role: 'assistant', content: first.content }, { role: 'user', content: [result] }];
    const last = await client.messages.create({ messages: history, ...options, tools: [tool], tool_choice: { type: 'none' } });
    check(last.content[0].text, 'no text after the tool');
  },
  errors: async () => {
    try {
      await client.messages.create({ messages, ...options, max_tokens: 0 });
    } catch (error) {
      check(error instanceof Anthropic.BadRequestError, `another error: ${error}`);
      return;
    }
    throw new Error('max_tokens 0 was taken');
  },
});
