export function SyncView() { return <h1>Sync</h1>; }
