export function PlanView(_: { plans: unknown }) { return null; }
export function UsageMeter({ usage }: { usage: { used: number; size: number } }) { return <span class="small soft">{usage.used} / {usage.size}</span>; }
