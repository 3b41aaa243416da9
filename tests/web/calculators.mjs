// Cost, models by shape and by config.json, commands for several hosts, memory over a step, and
// questions: the page draws the numbers of the commands.
import fs from "node:fs";
import path from "node:path";
import { check, expect, folder, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const shows = (page, name, text) =>
  until(`${name} ${text}`, async () => (await figure(page, name)) === text).catch(async () =>
    same(await figure(page, name), text, name),
  );

async function enter(page, field, text) {
  const exact = page.locator(`[data-field="${field}"] .exact`);
  await exact.fill(text);
  await exact.press("Enter");
}

// As the page formats them.
const days = (s) =>
  s < 172800
    ? s < 7200
      ? `${Number((s / 60).toFixed(s / 60 >= 99.995 ? 1 : 2))} min`
      : `${Number((s / 3600).toFixed(s / 3600 >= 99.995 ? 1 : 2))} h`
    : `${Number((s / 86400).toPrecision(3)).toLocaleString("en-US")} days`;
const count = (v) => {
  let at = 0;
  while (v >= 999.5 && at < 4) ((v /= 1000), at++);
  return `${Number(v.toFixed(v >= 99.995 ? 1 : 2))}${["", "k", "M", "B", "T"][at]}`;
};
const kwh = (v) => `${Math.round(v).toLocaleString("en-US")} kWh`;
const money = (v) => (v < 1000 ? `$${Number(v.toFixed(2))}` : `$${count(v)}`);

const LLAMA = {
  model_type: "llama",
  num_hidden_layers: 32,
  hidden_size: 4096,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  intermediate_size: 14336,
  vocab_size: 128256,
  max_position_embeddings: 8192,
  rope_theta: 500000,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: false,
};

export async function checkCalculators({ tessera, dashboard, open }) {
  const page = await open({ reducedMotion: "reduce" });

  await check("expert parallelism is offered for models with experts, with the numbers of tessera explain zero", async () => {
    const control = page.locator('[data-field="ep"]');
    await go(page, dashboard.address, "memory", "by=model&model=llama2-7b");
    same(await control.count(), 0, "controls of a model without experts");
    await go(page, dashboard.address, "memory", "by=model&model=mixtral-8x7b&dp=16&zero=3");
    const stageOf = (ep) =>
      json(tessera, "explain", "zero", "--model", "mixtral-8x7b", "--dp", "16", "--ep", ep, "--json").stages[3];
    await shows(page, "total", bytes(stageOf("1").needed));
    await enter(page, "ep", "4");
    const stage = stageOf("4");
    await shows(page, "total", bytes(stage.needed));
    await shows(page, "sent", bytes(stage.sent_by_axis.total));
    const note = await page.textContent('[data-figure="sent"] + .note');
    expect(stage.sent_by_axis.ep > 0 && note.includes(`ep ${bytes(stage.sent_by_axis.ep)}`), note);
    expect((await page.textContent("[data-command]")).includes("--ep 4"), "command");
    const formula = await page.textContent(".formula li.on");
    expect(/\(2\/16 .* \+ experts .*\(2\/4 \+ 2\/4 \+ 12\/4\) B = /.test(formula), formula);
    await enter(page, "ep", "3");
    await page.waitForSelector('[data-field="ep"] .reason');
    await go(page, dashboard.address, "trace", "model=mixtral-8x7b&dp=8&ep=4&pp=2");
    await page.waitForSelector('[data-figure="exposed-ep"]');
    same(await control.count(), 1, "controls of the trace view");
  });

  await check("the cost of a plan follows from its tokens/s", async () => {
    await go(page, dashboard.address, "plan", "gpus=8&global_batch=64&compare=false&tokens=2e11&price_per_hour=2.5");
    const words =
      "plan --search --model llama2-13b --gpus 8 --hardware h100 --global-batch 64 --layout bf16 --top 40 --json";
    const { best } = json(tessera, ...words.split(" "));
    for (const row of [0, 5]) {
      await page.locator("[data-plans] tbody tr").nth(row).click();
      const s = 2e11 / best[row].tokens_per_s;
      const hours = (8 * s) / 3600;
      await shows(page, "cost-time", days(s));
      await shows(page, "cost-gpu-hours", count(hours));
      await shows(page, "cost-energy", kwh(hours * 0.95));
      await shows(page, "cost-price", money(hours * 2.5));
      same(await figure(page, "cost-mfu"), `${(best[row].mfu * 100).toFixed(1)}%`, "MFU");
      const { low, high, ..._ } = best[row].time.interval;
      const range = [low, high].map((v) => days((s * v) / best[row].time.step)).join(" to ");
      same(
        await page.textContent('[data-figure="cost-time"] + .note'),
        `four of five such runs: ${range}`,
        "interval",
      );
    }
    const said = await figure(page, "cost-basis");
    expect(said.includes("950 W per GPU, h100's entry") && said.includes("$2.5 per GPU-hour, your value"), said);
    await enter(page, "watts", "1.4 kW");
    const hours = (8 * 2e11) / best[5].tokens_per_s / 3600;
    await shows(page, "cost-energy", kwh(hours * 1.4));
    await enter(page, "tokens", "many");
    const reason = await page.waitForSelector('[data-field="tokens"] .reason');
    expect(/many.*example: 1.5B/.test(await reason.textContent()), await reason.textContent());
    same(await page.locator("[data-plans] tbody tr").count(), best.length, "plans stay");
  });

  await check("scaling draws time and price over dp: one falls, the other rises", async () => {
    await go(page, dashboard.address, "scaling", "tokens=1000000000000");
    await page.waitForSelector(".u-over >> nth=3");
    const words = "simulate --model llama2-7b --hardware h200 --dp 8 --zero 0 --json";
    const { tokens_per_s: rate } = json(tessera, ...words.split(" "));
    await shows(page, "cost-time", days(1e12 / rate));
    await shows(page, "cost-price", money((8 * 1e12 * 2) / rate / 3600));
    const said = await figure(page, "cost-basis");
    expect(said.includes("1T tokens on 8 GPUs") && said.includes("$2 per GPU-hour, an assumption"), said);
    for (const [title, sign] of [["Time of the training", -1], ["Price of the training", 1]]) {
      const box = page.locator(".card", { has: page.getByRole("heading", { name: title }) });
      await box.locator(".save > summary").click();
      const [file] = await Promise.all([
        page.waitForEvent("download"),
        box.locator('[data-save="csv"]').click(),
      ]);
      const values = fs
        .readFileSync(await file.path(), "utf8")
        .trim()
        .split("\n")
        .slice(1)
        .map((line) => Number(line.split(",")[1]));
      same(values.length, 13, `${title}: rows`);
      values.slice(1).forEach((v, i) => expect(sign * (v - values[i]) > 0, `${title}: ${values}`));
    }
  });

  await check("a model by shape has KV heads, FFN width and a gated MLP", async () => {
    const query = "by=shape&layers=32&hidden=4096&heads=32&kv_heads=8&ffn=14336&gated=true&vocab=128256&seq=8192&dp=8&zero=3";
    await go(page, dashboard.address, "memory", query);
    const words = "plan --model llama3-8b --seq 8192 --dp 8 --zero 3 --hardware h100 --json";
    const plan = json(tessera, ...words.split(" "));
    await shows(page, "total", bytes(plan.memory.total));
    await shows(page, "activations", bytes(plan.memory.activations));
    const command = await page.locator(".head [data-copies^=tessera]").getAttribute("data-copies");
    const { stages } = json(tessera, ...command.split(" ").slice(1), "--json");
    same(stages[3].memory.total, plan.memory.total, "total of the copied command");
    for (const [field, text, where, message] of [
      ["kv_heads", "64", "kv_heads", /1 to 32/],
      ["kv_heads", "5", "heads", /5 kv-heads/],
      ["ffn", "wide", "ffn", /wide/],
    ]) {
      await enter(page, field, text);
      const reason = await page.waitForSelector(`[data-field="${where}"] .reason`);
      expect(message.test(await reason.textContent()), await reason.textContent());
      await enter(page, field, "");
      await until("no message", async () => (await page.locator(".reason").count()) === 0);
    }
    // Without a gated MLP the model has GPT-2's blocks.
    await page.locator('[data-field="gated"] input').click();
    const flags = "plan --layers 32 --hidden 4096 --heads 32 --vocab 128256 --seq 8192 --dp 8 --zero 3 --hardware h100 --json";
    await shows(page, "total", bytes(json(tessera, ...flags.split(" ")).memory.total));
  });

  await check("a pasted config.json is planned as the command plans its folder", async () => {
    const at = folder();
    fs.mkdirSync(path.join(at, "model"));
    fs.writeFileSync(path.join(at, "model/config.json"), JSON.stringify(LLAMA));
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/memory?by=config&dp=8&zero=3`);
    await page.waitForSelector('[data-field="config"] .reason'); // nothing is pasted yet
    const area = page.locator('[data-field="config"] textarea');
    await area.fill(JSON.stringify({ ...LLAMA, num_attention_heads: undefined }, null, 2));
    await area.blur();
    const reason = page.locator('[data-field="config"] .reason');
    await until("the missing field", async () =>
      ((await reason.count()) ? await reason.textContent() : "").includes("num_attention_heads"),
    );
    await area.fill(JSON.stringify(LLAMA, null, 2));
    await area.blur();
    const words = `plan --model ${at}/model --dp 8 --zero 3 --hardware h100 --json`;
    const plan = json(tessera, ...words.split(" "));
    await shows(page, "total", bytes(plan.memory.total));
    const parsed = await figure(page, "parsed-model");
    expect(/^8\.03B parameters, llama: 32 layers × 4096, 32 heads \(8 KV\), gated MLP 14336/.test(parsed), parsed);
    await page.reload();
    await shows(page, "total", bytes(plan.memory.total));
    // A plan of the search opens with the same model in another view.
    const config = encodeURIComponent(JSON.stringify(LLAMA));
    await go(page, dashboard.address, "plan", `by=config&config=${config}&gpus=8&global_batch=64&compare=false`);
    const search = `plan --search --model ${at}/model --gpus 8 --global-batch 64 --hardware h100 --layout bf16 --top 40 --json`;
    const { best } = json(tessera, ...search.split(" "));
    same(await page.locator("[data-plans] tbody tr").count(), best.length, "plans");
    for (const view of ["Memory", "Trace"]) {
      await page.locator(".card .button", { hasText: view }).click();
      if (view === "Memory") await shows(page, "total", bytes(best[0].memory.total));
      else await shows(page, "tokens", count(best[0].tokens_per_s));
      await page.goBack();
      await page.waitForSelector("[data-plans] tbody tr");
    }
  });

  await check("a plan for several hosts has a command for each launcher", async () => {
    await go(page, dashboard.address, "plan", "gpus=32&compare=false");
    const shown = Object.fromEntries(
      await page.$$eval("[data-launch]", (all) => all.map((e) => [e.dataset.launch, e.textContent])),
    );
    same(Object.keys(shown).join(), "torchrun,srun,tessera run", "launchers");
    for (const command of Object.values(shown))
      expect(/ tessera train --model llama2-13b --device cuda .* --data DATA$/.test(command), command);
    expect(shown.torchrun.startsWith("torchrun --nnodes 4 --nproc-per-node 8 "), shown.torchrun);
    expect(shown.srun.includes("srun --nodes 4 --ntasks-per-node 8 "), shown.srun);
    const copied = await page
      .locator("button", { hasText: "Copy for torchrun" })
      .getAttribute("data-copies");
    same(copied, shown.torchrun, "copied");
    await go(page, dashboard.address, "plan", "gpus=8&compare=false");
    same(await page.locator("[data-launch]").count(), 0, "launchers of one host");
  });

  await check("memory over a step is drawn by category and peaks at the plan", async () => {
    for (const [view, query, flags] of [
      ["memory", "by=model&model=gpt2-xl&dp=8&zero=1&hardware=h200", "--model gpt2-xl --dp 8 --zero 1 --hardware h200"],
      ["trace", "model=llama2-7b&dp=8&pp=4&grad_accum=8&zero=1&hardware=h100", "--model llama2-7b --dp 8 --pp 4 --grad-accum 8 --zero 1 --hardware h100"],
    ]) {
      await go(page, dashboard.address, view, query);
      await page.waitForSelector(".areas svg");
      const plan = json(tessera, "plan", ...flags.split(" "), "--json");
      const seen = await page.$eval(".areas svg", (svg) => {
        const areas = [...svg.querySelectorAll("[data-area]")].map((e) => {
          const points = [...e.points].map((p) => [p.x, p.y]);
          return [e.dataset.area, points.slice(0, points.length / 2), points.slice(points.length / 2).reverse()];
        });
        const mark = svg.querySelector(".peak");
        const lines = [...svg.querySelectorAll(".grid")].map((l) => Number(l.getAttribute("y1")));
        const texts = [...svg.querySelectorAll("text")].map((t) => t.textContent);
        return { areas, lines, texts, mark: [mark.cx.baseVal.value, mark.cy.baseVal.value, Number(mark.dataset.peak)] };
      });
      expect(Math.abs(seen.mark[2] / plan.memory.total - 1) < 1e-9, `${view}: ${seen.mark[2]}`);
      expect(seen.texts.includes(`peak ${bytes(plan.memory.total)}`), seen.texts.join(" | "));
      same(seen.areas.map(([key]) => key).join(), "params,grads,optimizer,buffers,activations,temporary", "areas");
      // Each area lies on the one below, and no edge is above the peak, which one reaches.
      const [, top] = seen.areas.at(-1);
      const highest = Math.min(...top.map(([, y]) => y));
      expect(Math.abs(highest - seen.mark[1]) < 0.01, `${view}: the areas reach ${highest}, the mark ${seen.mark[1]}`);
      seen.areas.slice(1).forEach(([key, , lower], i) =>
        lower.forEach(([, y], at) => expect(Math.abs(y - seen.areas[i][1][at][1]) < 0.01, `${key} at ${at}`)),
      );
      // The scale: the height of the largest category at its maximum is its bytes.
      const [zero] = seen.lines;
      const scale = plan.memory.total / (zero - seen.mark[1]);
      for (const key of ["params", "optimizer", "activations"]) {
        const [, upper, lower] = seen.areas.find(([name]) => name === key);
        const tall = Math.max(...upper.map(([, y], i) => lower[i][1] - y)) * scale;
        expect(Math.abs(tall / plan.memory[key] - 1) < 0.01, `${view}: ${key} is ${tall}, planned ${plan.memory[key]}`);
      }
    }
  });

  await check("questions are answered by the planner", async () => {
    const query = "model=llama2-7b&dp=8&tp=2&pp=4&zero=1&grad_accum=8";
    await go(page, dashboard.address, "questions", query);
    const asked = (id) => page.locator(`[data-question="${id}"]`);
    const plan = json(tessera, ..."plan --model llama2-7b --dp 8 --tp 2 --pp 4 --zero 1 --grad-accum 8 --hardware h100 --json".split(" "));
    const answer = async (id, text) => {
      await asked(id).locator('input[type="text"]').fill(text);
      await asked(id).locator('input[type="text"]').press("Enter");
    };
    await answer("bytes", "12");
    await asked("bytes").locator('[data-verdict="wrong"]').waitFor();
    await answer("bytes", "16");
    await asked("bytes").locator('[data-verdict="right"]').waitFor();
    await answer("batch", String(plan.question.global_batch));
    await asked("batch").locator('[data-verdict="right"]').waitFor();
    await answer("bubble", "27.3");
    await asked("bubble").locator('[data-verdict="right"]').waitFor();
    await answer("tensor", (plan.traffic.tp / 1e9).toFixed(1));
    await asked("tensor").locator('[data-verdict="right"]').waitFor();
    await asked("buckets").locator("input").first().check();
    await asked("buckets").locator('[data-verdict="right"]').waitFor();
    await asked("when-stage3").locator("input").first().check();
    await asked("when-stage3").locator('[data-verdict="wrong"]').waitFor();
    await asked("state").locator("button", { hasText: "Show" }).click();
    const { params, grads, optimizer } = plan.memory;
    const state = Number(((params + grads + optimizer) / 1e9).toPrecision(4));
    same(await asked("state").locator("[data-answer]").textContent(), `${state} GB`, "state");
    // The link opens the view with this plan.
    await asked("state").locator("a").click();
    await page.waitForSelector('[data-total="1"]');
    await shows(page, "total", bytes(plan.memory.total));
  });

  await check("the picture of a batch has its ranks, and the all-reduce below them", async () => {
    for (const [dp, ranks] of [[4, "0,1,2,3"], [64, "0,1,2,3,4,5,6,63"]]) {
      await go(page, dashboard.address, "questions", `model=gpt2-xl&dp=${dp}&grad_accum=4&micro_batch=2&tp=1&pp=1`);
      const seen = await page.$eval(".batch svg", (svg) => ({
        ranks: [...svg.querySelectorAll("[data-rank]")].map((g) => g.dataset.rank).join(),
        boxes: [...svg.querySelectorAll(".f-grads")].map((r) => r.getBoundingClientRect().bottom),
        bar: [svg.querySelector("[data-reduce]").getBoundingClientRect().top, svg.querySelector("[data-reduce]").getBoundingClientRect().width],
        wide: svg.getBoundingClientRect().width,
        text: svg.textContent,
      }));
      same(seen.ranks, ranks, "ranks");
      for (const bottom of seen.boxes) expect(bottom < seen.bar[0], "the all-reduce is below the gradients");
      expect(seen.bar[1] > 0.98 * seen.wide, "the all-reduce spans all ranks");
      expect(seen.text.includes(`one batch: ${(dp * 8).toLocaleString("en-US")} sequences`), seen.text);
      expect(seen.text.includes("4 × 2"), seen.text);
    }
  });
  await page.context().close();
}
