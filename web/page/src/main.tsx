/** The entry point. */

import { render } from "preact";

import { App } from "./app.js";
import { startWorker } from "./frame/notifications.js";
import { startShortcuts } from "./frame/shortcuts.js";
import { start } from "./frame/start.js";
import { startTheme } from "./frame/theme.js";
import { startClock } from "./frame/time.js";

import "./style/tokens.css";
import "./style/base.css";
import "./style/frame.css";
import "./style/sessions.css";
import "./style/content.css";
import "./style/conversation.css";
import "./style/inspector.css";

startTheme();
startClock();
startWorker();
startShortcuts();
start();
render(<App />, document.getElementById("page")!);
