// Axes of parallelism, as the server names them. Views draw all of them by name, so that a new axis
// needs no change here.
import { useAbout } from "../api";

export const useAxes = (): string[] => useAbout()?.axes ?? [];

// Name of a color: that of the axis, or of the axis that it is a part of (dp_replicate: dp).
const COLORS = ["dp", "ep", "cp", "tp", "pp"];
export const axisColor = (axis: string): string =>
  COLORS.find((name) => axis.split("_")[0] === name) ?? "accent";

// Returns the axes on which a run has several ranks. Replicas are a part of dp.
export const usedAxes = (axes: string[], sizes: object): string[] =>
  axes.filter((axis) => axis !== "dp_replicate" && Number((sizes as Record<string, unknown>)[axis]) > 1);
