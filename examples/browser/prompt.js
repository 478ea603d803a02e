// A page that prompts a turnwire daemon with fetch and reads the turn as SSE. No build step, no dependency.
//
//     python3 -m http.server 8000 --bind 127.0.0.1                 in this folder
//     turnwire serve --allow-origin http://127.0.0.1:8000          allows pages of that origin
//     turnwire token create page                                   paste it into the page
//
// EventSource sends no Authorization header, so the stream is read with fetch. A page served from the daemon's own origin
// has the login cookie and can use EventSource.

const PAUSE_MS = 500;
const form = document.querySelector("form");
const output = document.querySelector("output");
const end = document.querySelector("#end");
const question = document.querySelector("fieldset");

class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

class Daemon {
  constructor(url, token) {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  async ask(path, { headers = {}, ...rest } = {}) {
    const answer = await fetch(this.url + path, {
      ...rest,
      headers: { ...headers, Authorization: `Bearer ${this.token}` },
    });
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    throw new RequestError(answer.status, problem.error ?? `HTTP ${answer.status}`);
  }

  async post(path, body) {
    const headers = { "Content-Type": "application/json" };
    return (await this.ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
  }

  // Yields every event after a position exactly once, and reconnects as often as needed.
  async *follow(session, cursor) {
    for (;;) {
      try {
        const answer = await this.ask(`/session/${session}/events`, { headers: { "Last-Event-ID": String(cursor) } });
        for await (const { id, data } of frames(answer.body)) {
          yield JSON.parse(data);
          if (id !== undefined) cursor = id;
        }
      } catch (error) {
        if (error instanceof RequestError && error.status < 500) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}

// Yields the SSE frames of one connection. An empty line ends a frame.
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const frame = Object.fromEntries(part.split("\n").map((line) => {
          const colon = line.indexOf(":");
          return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
        }));
        if (frame.data !== undefined) yield frame;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function ask(daemon, session, { requestId, toolCall, options = [] }) {
  question.replaceChildren(question.firstElementChild);
  question.firstElementChild.textContent = toolCall?.title ?? "The agent asks";
  for (const { optionId, name } of options) {
    const button = document.createElement("button");
    button.textContent = name;
    button.dataset.option = optionId;
    button.onclick = () => {
      const outcome = { outcome: "selected", optionId };
      daemon.post(`/session/${session}/permissions/${requestId}`, { outcome }).catch(showError);
    };
    question.append(button);
  }
  question.hidden = false;
}

async function prompt(daemon, text) {
  const { sessionId } = await daemon.post("/session", {});
  const accepted = await daemon.post(`/session/${sessionId}/prompt`, { prompt: [{ type: "text", text }] });
  for await (const { type, promptId, data } of daemon.follow(sessionId, accepted.lastEventId)) {
    if ((promptId ?? data.promptId) !== accepted.promptId) continue;
    if (type === "session_update" && data.update.sessionUpdate === "agent_message_chunk") {
      output.append(data.update.content.text ?? "");
    } else if (type === "permission_request") ask(daemon, sessionId, data);
    else if (type === "permission_resolved") question.hidden = true;
    else if (type === "turn_complete") return data.stopReason;
    else if (type === "turn_error") throw new Error(data.message);
  }
}

function showError(error) {
  end.textContent = `failed: ${error.message}`;
}

form.onsubmit = (event) => {
  event.preventDefault();
  const { url, token, text } = form.elements;
  output.replaceChildren();
  end.textContent = "";
  prompt(new Daemon(url.value, token.value), text.value).then((reason) => (end.textContent = reason), showError);
};
