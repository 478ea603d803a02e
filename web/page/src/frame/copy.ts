/** Copying, with a word on whether it worked: browsers forbid it to pages that came without TLS. */

import { tell, tellError } from "./toasts.js";

/** Put a text where it can be pasted from. */
export async function copy(text: string, said: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    tell(said);
  } catch {
    tellError(new Error("This browser does not let the page copy; select the text and copy it yourself."));
  }
}
