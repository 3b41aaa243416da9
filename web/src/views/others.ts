// All views but the first, in a file of their own with the charts they draw: the first one does not
// wait until these are parsed.
export { CollectivesView as collectives } from "./collectives";
export { LiveView as live } from "./live";
export { PipelineView as pipeline } from "./pipeline";
export { PlanView as plan } from "./plan";
export { ScalingView as scaling } from "./scaling";
export { SyncView as sync } from "./sync";
export { TraceView as trace } from "./trace";
