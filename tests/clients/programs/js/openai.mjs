// The `openai` package for JavaScript: chat, responses, embeddings.
import OpenAI from 'openai';
import { check, MODEL, QUESTION, run, URL, WEATHER, weather } from './report.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: QUESTION }];
const options = { model: MODEL, temperature: 0, max_completion_tokens: 32 };
const tool = { type: 'function', function: { name: 'weather', parameters: WEATHER, strict: true } };

await run('openai', {
  chat: async () => {
    const answer = await client.chat.completions.create({ messages, ...options });
    check(answer.choices[0].message.content, 'no text');
  },
  stream: async () => {
    const whole = await client.chat.completions.create({ messages, ...options });
    const runner = client.chat.completions.stream({ messages, ...options });
    check((await runner.finalContent()) === whole.choices[0].message.content, 'streamed and whole text differ');
  },
  tools: async () => {
    const first = await client.chat.completions.create({
      messages, ...options, tools: [tool], tool_choice: 'required', parallel_tool_calls: false,
    });
    const [call] = first.choices[0].message.tool_calls;
    const content = weather(JSON.parse(call.function.arguments).city);
    const history = [...messages, first.choices[0].message, { role: 'tool', tool_call_id: call.id, content }];
    const last = await client.chat.completions.create({ messages: history, ...options });
    check(last.choices[0].message.content, 'no text after the tool');
  },
  'structured output': async () => {
    const json_schema = { name: 'weather', schema: WEATHER, strict: true };
    const response_format = { type: 'json_schema', json_schema };
    const answer = await client.chat.completions.parse({ messages, ...options, response_format });
    check(['Oslo', 'Kyoto'].includes(JSON.parse(answer.choices[0].message.content).city), 'another city');
  },
  responses: async () => {
    const stream = client.responses.stream({ model: MODEL, temperature: 0, max_output_tokens: 8, input: QUESTION });
    check((await stream.finalResponse()).output_text, 'no text');
  },
  embeddings: async () => {
    const found = await client.embeddings.create({ model: MODEL, input: ['The sky is blue.', 'A train.'] });
    check(found.data.length === 2, 'not one vector for each text');
  },
  errors: async () => {
    try {
      await client.chat.completions.create({ messages, ...options, temperature: -1 });
    } catch (error) {
      check(error instanceof OpenAI.BadRequestError && error.param === 'temperature', `another error: ${error}`);
      return;
    }
    throw new Error('a temperature of -1 was taken');
  },
});
