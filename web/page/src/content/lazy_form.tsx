/** The card of a form, whose code is loaded with the first form. */

import { type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { FormCardProps } from "./elicitation.js";

let loaded: ComponentType<FormCardProps> | undefined;

export function LazyFormCard({ onError, ...props }: FormCardProps & { readonly onError: (error: unknown) => void }) {
  const [, setLoaded] = useState(loaded !== undefined);
  useEffect(() => {
    if (loaded) return;
    import("./elicitation.js").then(({ FormCard }) => {
      loaded = FormCard;
      setLoaded(true);
    }, onError);
  }, []);
  const FormCard = loaded;
  return FormCard ? <FormCard {...props} /> : <p class="soft small">Loading…</p>;
}
