/**
 * Parses an event stream incrementally. The network may split a line end, a character or a CRLF. `data` is not parsed.
 */

/** One event of a stream. */
export interface SseEvent {
  /** `message` by default. */
  readonly type: string;
  /** Its `data` lines, joined by line feeds. */
  readonly data: string;
}

const LF = 10;
const CR = 13;

export class SseParser {
  /** The newest id of the stream, including one that came without an event. */
  lastEventId = "";
  /** The delay that the server requests before reconnecting, in milliseconds. */
  retryMs: number | undefined;

  readonly #decoder = new TextDecoder();
  /** An incomplete line. */
  #rest = "";
  /** The last character was a CR: a following LF belongs to it. */
  #afterCr = false;
  #type = "";
  #data: string[] = [];
  #id = "";

  /** Return the events that these bytes complete. */
  feed(bytes: Uint8Array): SseEvent[] {
    const text = this.#decoder.decode(bytes, { stream: true });
    const events: SseEvent[] = [];
    let from = 0;
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at);
      if (code === LF && this.#afterCr) {
        from = at + 1;
      } else if (code === LF || code === CR) {
        this.#line(this.#rest + text.slice(from, at), events);
        this.#rest = "";
        from = at + 1;
      }
      this.#afterCr = code === CR;
    }
    this.#rest += text.slice(from);
    return events;
  }

  #line(line: string, events: SseEvent[]): void {
    if (line === "") {
      this.#dispatch(events);
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.retryMs = Number(value);
    // A comment has an empty name. Unknown names are ignored.
  }

  #dispatch(events: SseEvent[]): void {
    this.lastEventId = this.#id;
    if (this.#data.length) events.push({ type: this.#type || "message", data: this.#data.join("\n") });
    this.#type = "";
    this.#data = [];
  }
}
