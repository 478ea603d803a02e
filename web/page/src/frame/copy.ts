/** Copying, with a word on whether it worked. */

import { copied } from "../content/clipboard.js";
import { tell, tellError } from "./toasts.js";

/** Put a text where it can be pasted from. */
export async function copy(text: string, said: string): Promise<void> {
  if (await copied(text)) tell(said);
  else tellError(new Error("This browser does not let the page copy; select the text and copy it yourself."));
}
