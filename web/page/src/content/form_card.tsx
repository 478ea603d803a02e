export function FormCard(_: unknown) { return <p>form</p>; }
