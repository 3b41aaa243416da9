// Duration, energy and price of a training, for throughputs that the planner or the simulator found.
import { requestBody, type RequestState, useRequest } from "../api";
import { COUNT, count, duration, kilowattHours, MONEY, money, POWER, whole, withDefault } from "../format";
import type { FieldProps } from "../route";
import { Slider } from "./controls";
import { Card, type Figure, Figures } from "./frame";

export const COST = { tokens: "1000000000000", price_per_hour: "", watts: "" };

export interface CostRow {
  gpus: number;
  seconds: number;
  gpu_hours: number;
  kwh: number;
  money: number;
}
type Basis = "given" | "hardware" | "assumed";
export interface CostResponse {
  tokens: number;
  watts: number;
  watts_basis: Basis;
  price_per_hour: number;
  price_basis: Basis;
  rows: (CostRow | null)[];
}

// Requests the cost for each number of GPUs and its tokens/s.
export function useCost(
  at: typeof COST,
  hardware: string,
  gpus: (number | null)[],
  rates: (number | null)[],
): RequestState<CostResponse> {
  const { tokens, price_per_hour, watts } = at;
  const body = { ...requestBody({ tokens, price_per_hour, watts, hardware }), gpus };
  return useRequest("api/cost", { ...body, tokens_per_s: rates }, rates.length > 0);
}

const TOKENS = [1e9, 1e10, 1e11, 3e11, 5e11, 1e12, 1.4e12, 2e12, 5e12, 1e13, 1.5e13, 3e13];
const basis = (of: Basis | undefined, hardware: string): string =>
  of === "hardware" ? `${hardware}'s entry` : of === "assumed" ? "an assumption" : "your value";

interface Props {
  response: CostResponse | undefined;
  hardware: string;
  field: (name: keyof typeof COST) => FieldProps;
  chosen?: number; // row of the figures
  range?: [low: number, high: number]; // rows of the ends of the prediction interval
  utilization?: Figure;
  stale?: boolean;
}
export function Cost(props: Props) {
  const { response, hardware, field, chosen = 0, range, utilization, stale = false } = props;
  const row = response?.rows[chosen];
  const [fast, slow] = (range ?? []).map((i) => response?.rows[i]);
  const spread = fast && slow && `${duration(fast.seconds)} to ${duration(slow.seconds)}`;
  return (
    <Card title="Cost of a training" stale={stale}>
      <div class="controls inline">
        <Slider label="Tokens" {...field("tokens")} unit={COUNT} stops={TOKENS} />
        <Slider
          label="Price per GPU-hour"
          {...field("price_per_hour")}
          unit={withDefault(MONEY, response ? `${money(response.price_per_hour)} (default)` : "default")}
          stops={["", 0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 8, 10]}
        />
        <Slider
          label="Power per GPU"
          {...field("watts")}
          unit={withDefault(POWER, response ? `${response.watts} W (default)` : "default")}
          stops={["", 200, 300, 400, 500, 700, 800, 950, 1000, 1200, 1500, 2000]}
        />
      </div>
      <Figures
        items={[
          {
            label: "Time",
            key: "cost-time",
            value: row ? duration(row.seconds) : "–",
            note: spread && `four of five such runs: ${spread}`,
          },
          { label: "GPU-hours", key: "cost-gpu-hours", value: row ? count(row.gpu_hours) : "–" },
          { label: "Energy", key: "cost-energy", value: row ? kilowattHours(row.kwh) : "–" },
          { label: "Price", key: "cost-price", value: row ? money(row.money) : "–" },
          ...(utilization ? [utilization] : []),
        ]}
      />
      {response && row && (
        <p class="note spaced" data-figure="cost-basis">
          {count(response.tokens)} tokens on {whole(row.gpus)} GPUs. Power: {response.watts} W per GPU,{" "}
          {basis(response.watts_basis, hardware)}. Price: {money(response.price_per_hour)} per
          GPU-hour, {basis(response.price_basis, hardware)}. Without restarts, evaluation and
          checkpoints.
        </p>
      )}
    </Card>
  );
}
