// All that a program needs:
//   auto world = tessera::init();                                         // the ranks of this job
//   tessera::DataParallel train(model, world, {.stage = 3});              // any module, one axis
//   tessera::Mesh mesh(world, "dp=2,tp=2,pp=2");
//   tessera::ParallelModel model(layers, mesh, {.micro_batches = 4});     // a list, three axes
//   tessera::save(train, "runs/a");                                       // of either
//   tessera::load(train, "runs/a");                                       // on any mesh
// docs/library.md walks through it.
#pragma once

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/mesh.h"
#include "tessera/core/axes.h"
#include "tessera/core/errors.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/unit.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/save.h"
#include "tessera/tensor_parallel/layers.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/initial_shards.h"
#include "tessera/zero/sync_batch_norm.h"

namespace tessera {

using comm::Group;
using comm::init;
using comm::Mesh;
using nn::is_recomputing;
using nn::Recompute;
using nn::set_recompute;
using nn::Unit;
using tensor_parallel::ColumnParallelLinear;
using tensor_parallel::MeshDropout;
using tensor_parallel::RowParallelLinear;
using tensor_parallel::VocabParallelEmbedding;
using zero::AdamW;
using zero::default_policy;
using zero::Engine;
using zero::GradBucket;
using zero::InitialShards;
using zero::Lion;
using zero::Muon;
using zero::OnNonFinite;
using zero::Options;
using zero::ParamPolicy;
using zero::PendingStep;
using zero::PendingSums;
using zero::ReduceHook;
using zero::SGD;
using zero::StateScope;
using zero::StateShard;
using zero::StepCounts;
using zero::StepInfo;
using zero::StepOptions;
using zero::TorchOptimizer;

}  // namespace tessera
