/** What an agent sent may be anything. What cannot be shown as it should be is shown as it is, and breaks nothing else. */

import { Component, type ComponentChildren } from "preact";

import { JsonView } from "./json.js";

interface GuardProps {
  /** What is shown. */
  readonly value: unknown;
  readonly children: ComponentChildren;
}

export class Guard extends Component<GuardProps, { readonly failed?: unknown }> {
  override state: { readonly failed?: unknown } = {};

  override componentDidCatch(): void {
    this.setState({ failed: this.props.value });
  }

  override render() {
    // Another value is another try.
    const hasFailed = "failed" in this.state && this.state.failed === this.props.value;
    return hasFailed ? <JsonView label="This cannot be shown" value={this.props.value} /> : this.props.children;
  }
}
