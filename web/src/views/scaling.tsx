export function ScalingView() { return <h1>Scaling</h1>; }
