/** The model of the open session, for the header. */

import { signal } from "@preact/signals";

export const modelOf = signal("");
