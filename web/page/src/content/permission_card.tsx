import type { PermissionMembers } from "@turnwire/client";
export function PermissionCard({ request, onAnswer }: { request: PermissionMembers; mayAnswer: boolean; resolved?: unknown; onAnswer: (id: string) => void }) {
  return <div class="card">{request.options?.map((o) => <button class="button" onClick={() => onAnswer(o.optionId)}>{o.name}</button>)}</div>;
}
