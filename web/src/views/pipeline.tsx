export function PipelineView() { return <h1>Pipeline</h1>; }
