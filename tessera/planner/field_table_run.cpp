// Rows of the table of fields that describe the optimizer, the run and its hardware.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/field_rows.h"

namespace tessera::planner {
namespace {

using S = RunConfig;

void add_optimizer(Table& t) {
  t.group("Optimizer");
  t.add("optimizer", &S::optimizer, "update rule").train();
  t.add("lr", &S::lr,
        "highest learning rate; auto: 0.003 up to 1M parameters, for larger models multiplied by "
        "the cube root of 1M / parameters")
      .range(0, 1e3)
      .automatic()
      .train();
  t.add("lr-scaling", &S::lr_scaling,
        "scale the learning rate by the ratio of the global batch to --lr-reference-batch, or by "
        "its square root")
      .train();
  t.add("lr-reference-batch", &S::lr_reference_batch,
        "global batch for which --lr was chosen, in sequences")
      .range(0, 1e12)
      .train();
  t.add("lr-schedule", &S::lr_schedule, "decay of the learning rate after the warm-up").train();
  t.add("warmup", &S::warmup,
        "steps in which the learning rate rises; -1: 20, but at most a fifth of all steps")
      .range(-1, kMany)
      .train();
  t.add("min-lr-ratio", &S::min_lr_ratio, "learning rate at the end, as a fraction of --lr")
      .range(0, 1)
      .train();
  t.add("decay-share", &S::decay_share,
        "fraction of the steps in which the rate decays, with --lr-schedule wsd")
      .range(0, 1)
      .train();
  t.add("weight-decay", &S::weight_decay,
        "weight decay of matrices; norms and biases are not decayed")
      .range(0, 1e3)
      .train();
  t.add("beta1", &S::beta1, "beta1 of AdamW and Lion").range(0, kBelowOne).train();
  t.add("beta2", &S::beta2, "beta2 of AdamW and Lion").range(0, kBelowOne).train();
  t.add("eps", &S::eps, "epsilon of AdamW").range(kAboveZero, 1).train();
  t.add("momentum", &S::momentum, "momentum of SGD and Muon").range(0, kBelowOne).train();
  t.add("clip", &S::clip, "largest norm of the gradient, which is clipped to it; 0: no clipping")
      .range(0, 1e9)
      .train();
  t.add("on-nan", &S::on_nan,
        "action if gradients are not finite: stop, skip the step, or roll back to the last "
        "checkpoint")
      .train();
}

void add_run(Table& t) {
  t.group("Run");
  t.add("device", &S::device, "device to train on").train();
  t.add("backend", &S::backend,
        "backend of the collectives; auto: shm on one host, two-level on several, or nccl with "
        "--device cuda if every rank has its own GPU")
      .train();
  t.add("dry-rank", &S::dry_rank,
        "with --backend dry: coordinate of the rank to simulate, such as tp=1,pp=3; omitted axes "
        "are 0")
      .type("COORDINATE")
      .train();
  t.add("link-bandwidth", &S::link_bandwidth,
        "for experiments with shm: limits the bandwidth of each rank, such as 1GB/s; empty: no "
        "limit")
      .type("RATE")
      .train();
  t.add("link-latency", &S::link_latency,
        "for experiments with shm: adds a minimum duration of each step of a collective, such as "
        "20us")
      .type("TIME")
      .train();
  t.add("cuda-graph", &S::cuda_graph,
        "run each step as one CUDA graph: auto (if possible), on (an error if it is not possible), "
        "off")
      .train();
  t.add("matmul-precision", &S::matmul_precision,
        "precision of products of fp32 tensors on GPUs; high: inputs may be rounded to TF32, which "
        "is faster")
      .plan("highest");
  t.add("precision", &S::precision,
        "precision of the linears of transformer blocks on GPUs: layout, as their parameters, or "
        "fp8, which is faster")
      .plan("layout");
  t.add("comm", &S::comm, "off: disables communication; for benchmarking only").train();
  t.add("threads", &S::threads, "threads per rank; 0: the cores divided by the ranks")
      .range(0, 4096)
      .train();
  t.add("memory-limit", &S::memory_limit,
        "largest memory of a rank, such as 2GiB; of its GPU with --device cuda. 0: no limit")
      .range(0, kMany)
      .size()
      .train();
  t.add("force", &S::force, "start even if the predicted memory exceeds the free memory").train();
}

void add_saving(Table& t) {
  t.group("Saving");
  t.add("save", &S::save, "folder for checkpoints").train();
  t.add("save-every", &S::save_every,
        "steps between checkpoints; 0: use --save-minutes, and save at the end")
      .range(0, kMany)
      .train();
  t.add("save-minutes", &S::save_minutes,
        "minutes between checkpoints if --save-every is 0; 0: save only at the end")
      .range(0, 1e6)
      .train();
  t.add("resume", &S::resume,
        "checkpoint to resume from, or the folder of a run with checkpoints; auto: the newest "
        "valid checkpoint in --save, if there is one")
      .train();
  t.add("keep-last", &S::keep_last, "number of newest checkpoints to keep; 0: all")
      .range(0, 1e6)
      .train();
  t.add("keep-every", &S::keep_every,
        "also keep the checkpoints of steps that are multiples of this; 0: none")
      .range(0, kMany)
      .train();
  t.add("async-save", &S::async_save,
        "write checkpoints in the background while training continues")
      .train();
  t.add("convert-optimizer-state", &S::convert_optimizer_state,
        "let --resume round moments that were saved with another --optimizer-state")
      .train();
  t.add("save-retries", &S::save_retries,
        "number of retries of a failed save, after 1 s, 2 s, 4 s, …")
      .range(0, 20)
      .train();
  t.add("on-save-error", &S::on_save_error,
        "action if all retries fail: stop, or warn and continue training (status 3 if the last "
        "save failed)")
      .train();
  t.add("max-restarts", &S::max_restarts,
        "number of restarts from the last checkpoint after a rank fails")
      .range(0, 1e6)
      .train();
  t.add("recover", &S::recover,
        "number of lost ranks that are replaced without a restart, as long as a replica is whole")
      .range(0, 1e6)
      .train();
  t.add("spares", &S::spares, "number of started ranks that wait to replace a lost one")
      .range(0, 1e4)
      .train();
  t.add("peer-timeout", &S::peer_timeout, "seconds after which a rank that does not answer is lost")
      .range(1, 1e6)
      .train();
  t.add("elastic", &S::elastic,
        "FEWEST:MOST ranks: a restart may continue with fewer ranks; empty: always with the same "
        "number")
      .train();
}

void add_hardware(Table& t) {
  t.group("Hardware");
  t.add("hardware", &S::hardware_name,
        "hardware for predictions, a name that tessera plan --list-hardware prints; training then "
        "also predicts the step time")
      .type("NAME")
      .plan("h100");
  t.add("hardware-file", &S::hardware_file,
        "file with your own hardware entries, such as tessera calibrate writes")
      .train();
  t.add("nodes", &S::nodes, "number of hosts").plan_only("as many as the devices fill");
  t.add("gpus-per-node", &S::per_node, "devices per host").plan_only("the hardware's");
  t.add_text(
       "between-bandwidth",
       [](S& s, const Field& field, std::string_view text) {
         try {
           s.between_bandwidth = parse_rate(text);
         } catch (const UsageError& error) {
           throw UsageError(Flag(field.name), error.what());
         }
         if (s.between_bandwidth > 0) return;
         throw UsageError(Flag(field.name), str("got ", quote(text), "; must be above 0"));
       },
       [](const S& s) { return str(number_text(s.between_bandwidth), "B/s"); },
       "bandwidth of a host's network adapter, such as 25GB/s")
      .type("RATE")
      .plan_only("the hardware's");
  t.add("price-per-hour", &S::price_per_hour,
        "price of one device per hour, for the cost of a step")
      .range(0, kMany)
      .plan_only("the hardware's");
  t.add("watts", &S::watts, "power of one device in watts, for the energy of a step")
      .range(0, kMany)
      .plan_only("the hardware's");
  t.group("Evaluation");
  t.add("eval-every", &S::eval_every,
        "steps between evaluations on the validation data; 0: only at the end")
      .range(0, kMany)
      .train();
  t.add("eval-batches", &S::eval_batches,
        "global batches per evaluation; 0: all of the data, or 16 if the data is unlimited")
      .range(0, kMany)
      .train();
  t.group("Output");
  t.add("metrics", &S::metrics, "write a JSON line per step to this file").train();
  t.add("tensorboard", &S::tensorboard, "write event files for TensorBoard into this folder")
      .type("DIR")
      .train();
  t.add("trace", &S::trace, "write spans of the first steps to this file, for Perfetto").train();
  t.add("trace-steps", &S::trace_steps, "number of steps in the trace").range(1, 1e6).train();
  t.add("samples", &S::samples, "number of answers of the trained model to print")
      .range(0, 1000)
      .train();
}

}  // namespace

void add_run_fields(Table& t) {
  add_optimizer(t);
  add_run(t);
  add_saving(t);
  add_hardware(t);
}

}  // namespace tessera::planner
