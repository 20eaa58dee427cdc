// The Vercel AI SDK with `@ai-sdk/openai-compatible` (chat) and `@ai-sdk/openai` (responses). The loops over a tool run
// at the server whose model calls tools.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { AGENT_MODEL, AGENT_URL, check, MODEL, QUESTION, run, URL, weather } from './report.mjs';

const at = (url) =>
  createOpenAICompatible({
    name: 'ekiden', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true, includeUsage: true,
  });
const options = { prompt: QUESTION, temperature: 0, maxOutputTokens: 32, maxRetries: 0 };
const model = at(URL)(MODEL);
const loop = {
  prompt: 'How is the weather in Oslo?',
  maxRetries: 0,
  stopWhen: stepCountIs(3),
  tools: {
    weather: tool({
      description: 'The weather of a city.',
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => weather(city),
    }),
  },
};

await run('ai', {
  chat: async () => {
    check((await generateText({ model, ...options })).text, 'no text');
  },
  stream: async () => {
    const { text } = await generateText({ model, ...options });
    const result = streamText({ model, ...options });
    let streamed = '';
    for await (const piece of result.textStream) streamed += piece;
    check(streamed === text, 'streamed and whole text differ');
    check((await result.usage).outputTokens > 0, 'no usage');
  },
  tools: async () => {
    const answer = await generateText({ model: at(AGENT_URL)(AGENT_MODEL), ...loop });
    check(answer.text.includes('21 degrees'), `another answer: ${answer.text}`);
    check(answer.steps.length === 2, 'not two steps');
  },
  'structured output': async () => {
    const output = Output.object({ schema: z.object({ city: z.enum(['Oslo', 'Kyoto']) }) });
    const answer = await generateText({ model, ...options, output });
    check(['Oslo', 'Kyoto'].includes(answer.output.city), 'another city');
  },
  responses: async () => {
    const responses = createOpenAI({ baseURL: `${AGENT_URL}/v1`, apiKey: 'none' })(AGENT_MODEL);
    const result = streamText({ model: responses, ...loop });
    check((await result.text).includes('21 degrees'), `another answer: ${await result.text}`);
  },
  embeddings: async () => {
    const found = await embedMany({ model: at(URL).textEmbeddingModel(MODEL), values: ['The sky is blue.', 'A train.'] });
    check(found.embeddings.length === 2, 'not one vector for each text');
  },
});
