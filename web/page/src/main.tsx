/** Where the page begins. */

import { render } from "preact";

import "./style/tokens.css";
import "./style/base.css";
import "./style/inspector.css";

render(<main>turnwire</main>, document.getElementById("page")!);
