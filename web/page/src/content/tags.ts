/** The HTML tags that Markdown may contain. Any other tag is shown as text, so that nothing is lost. */
export const TAGS: readonly string[] = (
  "a abbr b blockquote br caption center cite code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input ins kbd " +
  "li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var"
).split(" ");
