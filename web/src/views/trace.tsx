export function TraceView() { return <h1>Trace</h1>; }
