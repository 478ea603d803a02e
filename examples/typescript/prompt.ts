// Prompt a turnwire daemon with plain fetch: follow the turn as SSE, answer permission requests, print the answer.
//
//     TURNWIRE_TOKEN=$(turnwire token create my-script) node prompt.ts "What is in this folder?"
//
// Runs on Node 22.18 or newer (older: npx tsx prompt.ts), Deno and Bun. TURNWIRE_URL is the address of another daemon.

declare const process: {
  argv: string[];
  env: Record<string, string | undefined>;
  exitCode: number | undefined;
  stdout: { write(text: string): unknown };
};

const URL_OF_DAEMON = process.env.TURNWIRE_URL ?? "http://127.0.0.1:4170";
const TOKEN = process.env.TURNWIRE_TOKEN;
const PAUSE_MS = 500;

interface Option { optionId: string; name: string; kind: string }

interface Content { type: string; text?: string }

// The events this program uses. Skip unknown types: there are more.
interface Envelope {
  type: string;
  promptId?: string;
  data: {
    promptId?: string;
    stopReason?: string;
    message?: string;
    requestId?: string;
    toolCall?: { title?: string };
    options?: Option[];
    update?: { sessionUpdate: string; content?: Content | unknown[] };
  };
}

interface Frame { id: string | undefined; envelope: Envelope }

class RequestError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (TOKEN !== undefined) headers.set("Authorization", `Bearer ${TOKEN}`);
  const answer = await fetch(URL_OF_DAEMON + path, { ...init, headers });
  if (answer.ok) return answer;
  // Errors are application/problem+json; the message says what to do.
  const problem = (await answer.json().catch(() => ({}))) as { error?: string };
  throw new RequestError(answer.status, problem.error ?? `HTTP ${answer.status}`);
}

async function post<Answer>(path: string, body: unknown): Promise<Answer> {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json() as Promise<Answer>;
}

// Yields the SSE frames of one connection. An empty line ends a frame; a line starting with a colon is a heartbeat.
async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const fields = new Map(part.split("\n").map((line): [string, string] => {
          const colon = line.indexOf(":");
          return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
        }));
        const data = fields.get("data");
        if (data !== undefined) yield { id: fields.get("id"), envelope: JSON.parse(data) as Envelope };
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

// Yields every event after a position exactly once, and reconnects as often as needed.
async function* follow(session: string, after: number): AsyncGenerator<Envelope> {
  let cursor = String(after);
  for (;;) {
    try {
      const answer = await ask(`/session/${session}/events`, { headers: { "Last-Event-ID": cursor } });
      if (answer.body === null) throw new TypeError("the stream has no body");
      for await (const { id, envelope } of frames(answer.body)) {
        yield envelope;
        // After the yield, so that an event counts as read only once it was handled.
        if (id !== undefined) cursor = id;
      }
    } catch (error) {
      // A rejected request stays rejected; a lost connection is retried.
      if (error instanceof RequestError && error.status < 500) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function answer(session: string, data: Envelope["data"]): Promise<void> {
  const option = data.options?.find((each) => each.kind === "allow_once") ?? data.options?.[0];
  const outcome = option === undefined
    ? { outcome: "cancelled" }
    : { outcome: "selected", optionId: option.optionId };
  process.stdout.write(`\n[${data.toolCall?.title ?? "the agent asks"}: ${option?.name ?? "cancelled"}]\n`);
  await post(`/session/${session}/permissions/${data.requestId}`, { outcome });
}

async function main(text: string): Promise<void> {
  const { sessionId } = await post<{ sessionId: string }>("/session", {});
  const prompt = [{ type: "text", text }];
  const accepted = await post<{ promptId: string; lastEventId: number }>(`/session/${sessionId}/prompt`, { prompt });
  for await (const { type, promptId, data } of follow(sessionId, accepted.lastEventId)) {
    if ((promptId ?? data.promptId) !== accepted.promptId) continue;
    const update = data.update;
    if (type === "permission_request") await answer(sessionId, data);
    else if (update?.sessionUpdate === "agent_message_chunk" && update.content !== undefined) {
      if (!Array.isArray(update.content)) process.stdout.write(update.content.text ?? "");
    } else if (type === "turn_complete") {
      process.stdout.write(`\n[${data.stopReason}]\n`);
      return;
    } else if (type === "turn_error") {
      process.stdout.write(`\n[failed: ${data.message}]\n`);
      process.exitCode = 1;
      return;
    }
  }
}

await main(process.argv.slice(2).join(" ") || "hello");
