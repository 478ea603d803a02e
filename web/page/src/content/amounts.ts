/** Durations, token counts and costs in few characters. */

/** Return a duration in words. */
export function durationInWords(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
  return hours > 0 ? `${hours} h ${minutes % 60} min` : `${minutes} min ${whole % 60} s`;
}

/** Return a token count in words. */
export function tokensInWords(count: number): string {
  if (count < 1000) return String(count);
  if (count < 999_500) return `${(count / 1000).toFixed(count < 9950 ? 1 : 0)}k`;
  return `${(count / 1_000_000).toFixed(count < 9_950_000 ? 1 : 0)}M`;
}

/** Return a cost in words. The unit may be the agent's own, such as credits. */
export function costInWords(amount: number, currency: string): string {
  try {
    const digits = amount !== 0 && Math.abs(amount) < 0.1 ? 4 : 2;
    return new Intl.NumberFormat("en", { style: "currency", currency, maximumFractionDigits: digits }).format(
      amount,
    );
  } catch {
    return `${amount.toLocaleString("en")} ${currency}`;
  }
}
