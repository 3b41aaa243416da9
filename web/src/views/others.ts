// All views except the first, in a separate file, so that the first view does not wait for them to
// be parsed.
export { CollectivesView as collectives } from "./collectives";
export { ContextView as context } from "./context";
export { LiveView as live } from "./live";
export { PipelineView as pipeline } from "./pipeline";
export { PlanView as plan } from "./plan";
export { QuestionsView as questions } from "./questions";
export { ScalingView as scaling } from "./scaling";
export { SyncView as sync } from "./sync";
export { TraceView as trace } from "./trace";
