/** A permission request of any version of ACP in one form, and its outcome in words. */

import type { PermissionMembers, PermissionOption } from "@turnwire/client";

import type { FileChange } from "./change.js";
import type { Terminals, ToolCallItem } from "./items.js";
import { type Members, members, text } from "./told.js";
import {
  blocksOf,
  changesOf,
  commandOf,
  folderOf,
  placesOf,
  terminalsOf,
  titleOf,
  type ToldCall,
  unfenced,
} from "./tool.js";
import { isMarked, visible } from "./visible.js";

export interface Asked {
  readonly title: string;
  readonly description: string;
  readonly kind: string;
  readonly command?: string;
  readonly folder?: string;
  readonly changes: readonly FileChange[];
  /** The call's other text. */
  readonly text: string;
  readonly locations: readonly string[];
  /** The unmodified input, for tools that no view here understands. */
  readonly rawInput?: unknown;
  /** It contains characters that are shown as marks because they would hide or reverse others. */
  readonly hasMarks: boolean;
}

/** `before`: the tool call as reported earlier; the request's members are added to it. */
export function askedOf(request: PermissionMembers, before?: ToolCallItem, terminals?: Terminals): Asked {
  const params = members(request.params);
  const subject = members(request.subject ?? params["subject"]);
  const requested = members(
    request.toolCall ?? params["toolCall"] ?? (subject["type"] === "tool_call" ? subject["toolCall"] : {}),
  );
  const call: ToldCall = { ...before, ...withoutNulls(requested) };
  const shown = terminalsOf(call, terminals);
  const isCommand = subject["type"] === "command";
  const command =
    (isCommand ? text(subject["command"]) : "") || commandOf(call, shown) || commandOf(before ?? {}, shown);
  const folder = (isCommand ? text(subject["cwd"]) : "") || folderOf(call, shown);
  const title = text(request.title ?? params["title"]) || text(params["message"]) || titleOf(call);
  const description = text(request.description ?? params["description"]);
  const changes = changesOf(call);
  const locations = placesOf(call);
  const shownText = blocksOf(call)
    .map((each) => (each.type === "text" ? unfenced(each.text) : ""))
    .filter(Boolean)
    .join("\n");
  const all = [title, description, command, folder, shownText, locations, changes, call.rawInput, request.options];
  return {
    title: visible(title) || "The agent needs permission",
    description: visible(description),
    kind: isCommand ? "execute" : (call.kind ?? "other"),
    ...(command && { command: visible(command) }),
    ...(folder && { folder: visible(folder) }),
    changes,
    text: visible(shownText),
    locations: locations.map(visible),
    ...(call.rawInput === undefined ? {} : { rawInput: call.rawInput }),
    hasMarks: isMarkedIn(all),
  };
}

const ORDER = ["allow_once", "allow_always", "reject_once", "reject_always"];

/** Return the options: those that allow, those of an unknown kind, those that reject. */
export function optionsOf(request: PermissionMembers): PermissionOption[] {
  const given = request.options ?? members(request.params)["options"];
  const options: readonly PermissionOption[] = Array.isArray(given)
    ? (given as readonly unknown[]).filter(
        (each): each is PermissionOption => text(members(each)["optionId"]) !== "",
      )
    : (request.optionIds ?? []).map((optionId) => ({ optionId }));
  const rank = ({ kind }: PermissionOption): number => {
    const at = ORDER.indexOf(kind ?? "");
    return at < 0 ? 1.5 : at;
  };
  return [...options].sort((one, other) => rank(one) - rank(other));
}

export function optionName(option: PermissionOption): string {
  return visible(option.name || option.optionId);
}

/** How a request ended. */
export interface Resolved {
  readonly end: "answered" | "cancelled" | "withdrawn";
  /** Display name of the user who answered. */
  readonly by?: string | undefined;
  /** It was answered in this tab. */
  readonly here: boolean;
  /** The winning answer: an `outcome`, or for a form an `action`. */
  readonly answer?: unknown;
}

const ACTIONS: Readonly<Record<string, string>> = { accept: "Sent", decline: "Declined", cancel: "Cancelled" };

/** Whether the answer allowed the request. */
export function wasAllowed(request: PermissionMembers, resolved: Resolved): boolean {
  const { optionId, action } = answered(resolved);
  const kind = optionsOf(request).find((each) => each.optionId === optionId)?.kind ?? "";
  return resolved.end === "answered" && (action === "accept" || kind.startsWith("allow"));
}

export function outcomeInWords(request: PermissionMembers, resolved: Resolved): string {
  if (resolved.end === "withdrawn") return "Withdrawn by the agent";
  const isMe = resolved.here || resolved.by === "You";
  const by = resolved.by ? ` by ${resolved.by}` : "";
  if (resolved.end === "cancelled") return isMe ? "Cancelled by you" : `Cancelled${by}`;
  const { optionId, action } = answered(resolved);
  const option = optionsOf(request).find((each) => each.optionId === optionId);
  const words = option ? optionName(option) : (ACTIONS[action] ?? optionId ?? "");
  const who = resolved.here ? "You answered" : isMe ? "You answered elsewhere" : `Answered elsewhere${by}`;
  return who + (words === "" ? "" : `: ${words}`);
}

function answered(resolved: Resolved): { readonly optionId: string | undefined; readonly action: string } {
  const answer = members(resolved.answer);
  const outcome = members(answer["outcome"]);
  const optionId = outcome["optionId"] ?? answer["optionId"];
  return { optionId: typeof optionId === "string" ? optionId : undefined, action: text(answer["action"]) };
}

/** Whether any text in a value contains such characters. */
function isMarkedIn(value: unknown): boolean {
  if (typeof value === "string") return isMarked(value);
  return typeof value === "object" && value !== null && Object.values(value).some(isMarkedIn);
}

function withoutNulls(given: Members): ToldCall {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null)) as ToldCall;
}
