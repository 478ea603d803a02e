/** A form of the agent: its fields, and problems with their values. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  contentOf,
  type Field,
  initialValues,
  problemOf,
  problemsOf,
  readElicitation,
  type Value,
} from "../src/content/form.js";

function fieldsOf(properties: object, required: readonly string[] = []): readonly Field[] {
  const read = readElicitation({
    message: "m",
    mode: "form",
    requestedSchema: { type: "object", properties, required },
  });
  assert.equal(read.mode, "form");
  return read.mode === "form" ? read.fields : [];
}

function problem(schema: object, value: Value, isRequired = false): string | undefined {
  return problemOf(fieldsOf({ x: schema }, isRequired ? ["x"] : [])[0]!, value);
}

test("fields are read with their choices, defaults and bounds", () => {
  const [name, kind, many, odd] = fieldsOf(
    {
      name: { type: "string", title: "Name", default: "n", minLength: 2, maxLength: 4 },
      kind: {
        oneOf: [
          { const: "a", title: "A", description: "first" },
          { const: "b", title: "B" },
        ],
      },
      many: { type: "array", items: { type: "string", enum: ["x", "y"] }, default: ["x"], minItems: 1 },
      odd: { type: "object" },
    },
    ["name"],
  );
  assert.deepEqual(
    [name!.title, name!.isRequired, name!.initial, name!.least, name!.most],
    ["Name", true, "n", 2, 4],
  );
  assert.deepEqual(
    [kind!.type, kind!.title, kind!.choices.map((each) => each.title)],
    ["string", "kind", ["A", "B"]],
  );
  assert.deepEqual([many!.type, many!.initial, many!.least], ["array", ["x"], 1]);
  assert.equal(odd!.type, "other");
});

test("other modes are recognized, and an unknown mode is reported as such", () => {
  assert.deepEqual(readElicitation({ mode: "url", message: "m", url: "https://a.test:8/x" }), {
    mode: "url",
    message: "m",
    url: "https://a.test:8/x",
    host: "a.test:8",
  });
  const host = (url: string): unknown => (readElicitation({ mode: "url", url }) as { readonly host?: string }).host;
  assert.equal(host("javascript:alert(1)"), undefined);
  assert.equal(host("not an address"), undefined);
  assert.equal(host("https://bank.test@evil.test/"), "evil.test");
  assert.equal(readElicitation({ mode: "_own", message: "m" }).mode, "other");
  assert.equal(readElicitation(null).mode, "other");
});

test("text is checked for length, pattern and format", () => {
  assert.match(problem({ type: "string" }, "", true)!, /Fill/);
  assert.equal(problem({ type: "string" }, ""), undefined);
  assert.match(problem({ type: "string", minLength: 3 }, "ab")!, /at least 3/);
  assert.match(problem({ type: "string", maxLength: 1 }, "äö")!, /at most 1/);
  assert.equal(problem({ type: "string", maxLength: 1 }, "😀"), undefined);
  assert.match(problem({ type: "string", pattern: "^v\\d+$" }, "x")!, /look like/);
  assert.equal(problem({ type: "string", pattern: "(" }, "x"), undefined);
  assert.match(problem({ type: "string", format: "email" }, "x")!, /e-mail/);
  assert.equal(problem({ type: "string", format: "email" }, "a@b.test"), undefined);
  assert.match(problem({ type: "string", format: "uri" }, "x")!, /address/);
  assert.match(problem({ type: "string", format: "date" }, "2026-02-30")!, /date/);
  assert.equal(problem({ type: "string", format: "date" }, "2026-02-28"), undefined);
  assert.match(problem({ type: "string", format: "date-time" }, "soon")!, /time/);
  assert.equal(problem({ type: "string", format: "a new one" }, "x"), undefined);
});

test("numbers are checked for their type and bounds", () => {
  assert.match(problem({ type: "number" }, "x")!, /a number/);
  assert.match(problem({ type: "number" }, " ")!, /a number/);
  assert.match(problem({ type: "integer" }, "1.5")!, /whole/);
  assert.equal(problem({ type: "number" }, "1.5"), undefined);
  assert.match(problem({ type: "number", minimum: 2 }, "1")!, /at least 2/);
  assert.match(problem({ type: "integer", maximum: 2 }, "3")!, /at most 2/);
  assert.match(problem({ type: "integer" }, "", true)!, /Fill/);
});

test("choices are checked, one or several", () => {
  assert.match(problem({ type: "string", enum: ["a"] }, "", true)!, /Choose one/);
  assert.match(problem({ type: "string", enum: ["a"] }, "b")!, /one of these/);
  const several = { type: "array", items: { enum: ["a", "b", "c"] }, minItems: 2, maxItems: 2 };
  assert.match(problem(several, ["a"])!, /at least 2/);
  assert.match(problem(several, ["a", "b", "c"])!, /at most 2/);
  assert.equal(problem(several, []), undefined);
  assert.match(problem(several, [], true)!, /at least 2/);
});

test("a field of an unknown type blocks a form only if it is required", () => {
  assert.equal(problem({ type: "object" }, ""), undefined);
  assert.match(problem({ type: "object" }, "", true)!, /cannot be filled in/);
});

test("the content has the types of the schema, without empty fields", () => {
  const fields = fieldsOf(
    {
      s: { type: "string" },
      e: { type: "string" },
      n: { type: "number" },
      i: { type: "integer", default: 3 },
      b: { type: "boolean", default: true },
      m: { type: "array", items: { enum: ["a"] } },
      r: { type: "array", items: { enum: ["a"] } },
      t: { type: "string", format: "date-time", default: "2026-01-02T03:04:00Z" },
      o: { type: "object" },
    },
    ["r"],
  );
  const values = { ...initialValues(fields), s: "x", n: "1.5" };
  assert.deepEqual(problemsOf(fields, values), {});
  assert.deepEqual(contentOf(fields, values), {
    s: "x",
    n: 1.5,
    i: 3,
    b: true,
    r: [],
    t: "2026-01-02T03:04:00.000Z",
  });
});
