// Questions about a plan. The server computes the answers.
import { useState } from "preact/hooks";
import { requestBody, useAbout, useRequest } from "../api";
import { plain } from "../format";
import { type Batch, BatchSplit } from "../parts/batch";
import { Choice, doublings, Slider } from "../parts/controls";
import { Card, View } from "../parts/frame";
import {
  BATCH,
  contextAndExperts,
  ExpertSlider,
  HardwareChoice,
  LayoutChoice,
  modelBody,
  ModelFields,
  modelOfPlan,
  PARALLEL,
  SHAPE,
  shapeless,
  StageChoice,
  withModel,
} from "../parts/model";
import { PlanNote } from "../parts/plan_details";
import { address, planText, useFields, type Values, type ViewId, VIEWS } from "../route";

interface Question {
  id: string;
  view: ViewId;
  kind: "number" | "choice";
  text: string;
  unit?: string;
  choices?: string[];
  answer: number;
  tolerance?: number;
  explanation: string;
}
interface QuestionsResponse {
  questions: Question[];
  batch: Batch;
  command: string;
}

const DEFAULTS = {
  ...SHAPE,
  ...PARALLEL,
  zero: "1",
  layout: "bf16",
  hardware: "h100",
  micro_batch: BATCH.micro_batch,
  grad_accum: "4",
  schedule: "1f1b",
};

export function QuestionsView() {
  const { at, plan, field } = useFields("questions", DEFAULTS, modelOfPlan);
  const about = useAbout();
  const { dp_replicate, cp: _cp, ep: _ep, ...rest } = shapeless(at);
  const settings = {
    ...plan.others,
    ...modelBody(at),
    ...rest,
    ...contextAndExperts(at),
    ...(dp_replicate === "1" ? {} : { dp_replicate: dp_replicate ?? "" }),
  };
  const { data, error, busy } = useRequest<QuestionsResponse>(
    "api/questions",
    requestBody(settings),
  );
  return (
    <View
      title="Check yourself"
      lead="Questions about this plan. The planner computes the answers."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <PlanNote plan={plan} view="questions" />
          <ModelFields field={field} />
          <HardwareChoice {...field("hardware")} />
          <LayoutChoice {...field("layout")} />
          <Slider label="Data parallel" {...field("dp")} also={["gpus"]} stops={doublings(1, 1024)} />
          <Slider label="Context parallel" {...field("cp")} stops={doublings(1, 64)} />
          <ExpertSlider at={at} {...field("ep")} />
          <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 16)} />
          <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 64)} />
          <StageChoice {...field("zero")} />
          <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 4, 8, 16, 32]} />
          <Slider
            label="Micro-batches per step"
            {...field("grad_accum")}
            stops={[1, 2, 4, 8, 16, 32, 64]}
          />
          <Choice label="Schedule" {...field("schedule")} options={about?.schedules ?? []} />
        </>
      }
      tries={
        <>
          <p>
            Answer before you press <strong>Show</strong>. Then change <strong>dp</strong>, the
            stage or the model, and answer again: the numbers follow your plan.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Every rank computes its own part of the batch. The <strong>all-reduce</strong> makes
            their gradients equal, and so their models stay equal.
          </p>
        </>
      }
    >
      {data && (
        <Card title="One batch over the ranks" note="data parallelism" pinned>
          <BatchSplit batch={data.batch} />
        </Card>
      )}
      {data?.questions.map((q) => (
        <Asked
          key={`${q.id} ${q.text}`}
          question={q}
          settings={Object.fromEntries(
            Object.entries(withModel(settings, at)).filter(([, v]) => v !== ""),
          )}
        />
      ))}
    </View>
  );
}

function Asked({ question: q, settings }: { question: Question; settings: Values }) {
  const [given, setGiven] = useState("");
  const [state, setState] = useState<"open" | "right" | "wrong" | "shown">("open");
  const numeric = q.kind === "number";
  const answer = numeric ? `${plain(q.answer)} ${q.unit ?? ""}` : (q.choices?.[q.answer] ?? "");
  const check = (text: string) => {
    if (text.trim() === "") return;
    const value = Number(text.replaceAll(",", "").replace(/[^\d.eE+-].*$/, ""));
    const right = Math.abs(value - q.answer) <= (numeric ? (q.tolerance ?? 0) + 1e-9 : 0);
    setState(right ? "right" : "wrong");
  };
  const view = VIEWS.find((v) => v.id === q.view);
  const carries = !["plan", "sync"].includes(q.view);
  const solved = state === "right" || state === "shown";
  return (
    <section class="card question" data-question={q.id}>
      {numeric ? (
        <form
          onSubmit={(e) => {
            e.preventDefault();
            check(given);
          }}
        >
          <label for={`q-${q.id}`}>{q.text}</label>
          <span class="buttons">
            <input
              id={`q-${q.id}`}
              type="text"
              inputMode="decimal"
              value={given}
              onInput={(e) => {
                setGiven(e.currentTarget.value);
                if (state === "wrong") setState("open");
              }}
            />
            <span class="note">{q.unit}</span>
            <button type="submit" aria-label={`Check: ${q.text}`}>
              Check
            </button>
            <Show of={q.text} show={() => setState("shown")} />
          </span>
        </form>
      ) : (
        <fieldset>
          <legend>{q.text}</legend>
          {q.choices?.map((choice, i) => (
            <label key={choice}>
              <input
                type="radio"
                name={`q-${q.id}`}
                checked={given === String(i)}
                onChange={() => {
                  setGiven(String(i));
                  check(String(i));
                }}
              />
              {choice}
            </label>
          ))}
          <span class="buttons">
            <Show of={q.text} show={() => setState("shown")} />
          </span>
        </fieldset>
      )}
      <div role="status" data-verdict={state}>
        {state === "wrong" && <p class="bad-text">Not yet. Try again, or show the answer.</p>}
        {solved && (
          <>
            <p class="good-text">
              {state === "right" ? "Right: " : "Answer: "}
              <b data-answer>{answer.trim()}</b>
            </p>
            <p class="note">
              {q.explanation}{" "}
              <a
                href={carries ? address(q.view, { plan: planText(settings) }) : address(q.view)}
                aria-label={`${view?.name}: ${q.text}`}
              >
                See it in {view?.name}
              </a>
            </p>
          </>
        )}
      </div>
    </section>
  );
}

function Show({ of, show }: { of: string; show: () => void }) {
  return (
    <button type="button" aria-label={`Show: ${of}`} onClick={show}>
      Show
    </button>
  );
}
