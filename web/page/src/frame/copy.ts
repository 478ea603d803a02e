/** Copying with a message about the result. */

import { copied } from "../content/clipboard.js";
import { tell, tellError } from "./toasts.js";

/** Copy a text to the clipboard. */
export async function copy(text: string, said: string): Promise<void> {
  if (await copied(text)) tell(said);
  else tellError(new Error("This browser does not let the page copy; select the text and copy it yourself."));
}
