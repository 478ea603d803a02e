/** Files that go with a prompt: what an agent takes of them, and as which content block. Never sends anything. */

import type { ContentBlock } from "@turnwire/client";

/** What of a prompt besides text its agent takes. */
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

/** More than this is read by no model, and the daemon refuses a body of 32 MiB. */
export const MOST_BYTES = 10 * 1024 * 1024;
/** So much of a file is looked at to tell text from other bytes. */
const LOOKED_AT = 4096;

let count = 0;

/** What an agent's capabilities say, in the form of ACP v1 or v2. */
export function takesOf(capabilities: unknown): Takes {
  const said = (capabilities ?? {}) as {
    readonly promptCapabilities?: Readonly<Record<string, unknown>>;
    readonly session?: { readonly prompt?: Readonly<Record<string, unknown>> };
  };
  const prompt = said.session?.prompt ?? said.promptCapabilities ?? {};
  // v1 says true or false; v2 an object, or nothing.
  const has = (name: string) => prompt[name] !== undefined && prompt[name] !== null && prompt[name] !== false;
  return { image: has("image"), audio: has("audio"), embeddedContext: has("embeddedContext") };
}

/** A file as the agent takes it, or why it does not. */
export async function attach(file: File, takes: Takes): Promise<Attachment | Refusal> {
  const refuse = (why: string): Refusal => ({ name: file.name, why });
  if (file.size > MOST_BYTES) return refuse("It is larger than 10 MiB.");
  const bytes = new Uint8Array(await file.arrayBuffer());
  const made = (block: ContentBlock): Attachment => ({ id: ++count, name: file.name, bytes: file.size, block });
  if (file.type.startsWith("image/")) {
    if (takes.image) return made({ type: "image", data: base64(bytes), mimeType: file.type });
    if (file.type !== "image/svg+xml") return refuse("This agent takes no images.");
  }
  if (file.type.startsWith("audio/")) {
    if (takes.audio) return made({ type: "audio", data: base64(bytes), mimeType: file.type });
    return refuse("This agent takes no audio.");
  }
  const text = textOf(bytes);
  if (text === undefined) return refuse("It is neither text nor an image.");
  const mimeType = file.type || "text/plain";
  if (takes.embeddedContext) {
    const uri = `attachment:///${encodeURIComponent(file.name)}`;
    return made({ type: "resource", resource: { uri, text, mimeType } });
  }
  return made({ type: "text", text: fenced(file.name, text) });
}

/** A text as a block of code with its name, for an agent that takes plain text only. */
export function fenced(name: string, text: string): string {
  // A fence is longer than any that is in the text.
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Bytes as text, nothing if they are none. */
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
  // In pieces, because a call takes a bounded number of arguments.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}
