export function CollectivesView() { return <h1>Collectives</h1>; }
