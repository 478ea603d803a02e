/** Files attached to a prompt, as the content blocks that the agent accepts. Sends nothing. */

import type { ContentBlock } from "@turnwire/client";

/** Kinds of content besides text that the agent accepts in a prompt. */
export interface Takes {
  readonly image: boolean;
  readonly audio: boolean;
  readonly embeddedContext: boolean;
}

export interface Attachment {
  readonly id: number;
  readonly name: string;
  readonly bytes: number;
  readonly block: ContentBlock;
}

export interface Refusal {
  readonly name: string;
  readonly why: string;
}

/** No model reads more than this, and the daemon rejects a body of more than 32 MiB. */
export const MOST_BYTES = 10 * 1024 * 1024;
/** Bytes of a file that decide whether it is text. */
const LOOKED_AT = 4096;

let count = 0;

/** Return the accepted content from an agent's capabilities of ACP v1 or v2. */
export function takesOf(capabilities: unknown): Takes {
  const said = (capabilities ?? {}) as {
    readonly promptCapabilities?: Readonly<Record<string, unknown>>;
    readonly session?: { readonly prompt?: Readonly<Record<string, unknown>> };
  };
  const prompt = said.session?.prompt ?? said.promptCapabilities ?? {};
  // v1 has true or false; v2 an object, or nothing.
  const has = (name: string) => prompt[name] !== undefined && prompt[name] !== null && prompt[name] !== false;
  return { image: has("image"), audio: has("audio"), embeddedContext: has("embeddedContext") };
}

/** Return a file as an attachment, or why the agent does not accept it. */
export async function attach(file: File, takes: Takes): Promise<Attachment | Refusal> {
  const refuse = (why: string): Refusal => ({ name: file.name, why });
  if (file.size > MOST_BYTES) return refuse("The file is larger than 10 MiB.");
  const bytes = new Uint8Array(await file.arrayBuffer());
  const made = (block: ContentBlock): Attachment => ({ id: ++count, name: file.name, bytes: file.size, block });
  if (file.type.startsWith("image/")) {
    if (takes.image) return made({ type: "image", data: base64(bytes), mimeType: file.type });
    if (file.type !== "image/svg+xml") return refuse("This agent does not accept images.");
  }
  if (file.type.startsWith("audio/")) {
    if (takes.audio) return made({ type: "audio", data: base64(bytes), mimeType: file.type });
    return refuse("This agent does not accept audio.");
  }
  const text = textOf(bytes);
  if (text === undefined) return refuse("The file is neither text nor an image.");
  const mimeType = file.type || "text/plain";
  if (takes.embeddedContext) {
    const uri = `attachment:///${encodeURIComponent(file.name)}`;
    return made({ type: "resource", resource: { uri, text, mimeType } });
  }
  return made({ type: "text", text: fenced(file.name, text) });
}

/** Return a text as a named code block, for an agent that accepts plain text only. */
export function fenced(name: string, text: string): string {
  // A fence must be longer than any fence in the text.
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Return bytes as text; undefined if they are not text. */
export function textOf(bytes: Uint8Array): string | undefined {
  if (bytes.subarray(0, LOOKED_AT).includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

export function base64(bytes: Uint8Array): string {
  let binary = "";
  // In chunks: the number of arguments of a call is limited.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}
