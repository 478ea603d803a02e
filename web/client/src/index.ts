/** The exports of the package. */

export type * from "./acp.js";
export { type CallOptions, DaemonCalls, type PageWanted, type PromptOptions, SessionCalls, reach } from "./calls.js";
export { Client, connect, type ConnectOptions } from "./client.js";
export type { Clock } from "./clock.js";
export * from "./errors.js";
export type * from "./events.js";
export { PermissionRequest, type Answer } from "./permission.js";
export type { HandlerCall, TurnResult } from "./progress.js";
export type * from "./rest.js";
export { Session } from "./session.js";
export type { EventSourceOf, Position, Shape } from "./source.js";
export type { Batch, Connection, Watch } from "./stream.js";
export { Turn } from "./turn.js";
export type { Handler, PermissionHandler } from "./walk.js";
