export function LiveView() { return <h1>Live</h1>; }
