"""The guide's main_apex_d76_npu.py (seed 003): what saves and loads is as it is there, the rest as small as it can be.

On CPUs: the device is "cpu", the backend gloo, and each rank is the first of its node. Where CANDIDATE is set, that is
the file, in place of the first that glob finds.
"""

import argparse
import glob
import json
import os

import torch
from torch import nn

CALCULATE_DEVICE = "cpu"
BATCH_SIZE, BATCHES = 16, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.gpu, args.device, args.arch, args.start_epoch = None, CALCULATE_DEVICE, "linear", 0
    ngpus_per_node = 1
    best_acc1 = torch.tensor(-1.0)

    torch.manual_seed(49)
    meeting = f"file://{os.getcwd()}/meeting-{os.environ['LAUNCH']}"
    torch.distributed.init_process_group("gloo", meeting, world_size=args.world_size, rank=args.rank)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    if args.resume:
        candidate_ckpt_path = os.environ.get("CANDIDATE", "")
        if not candidate_ckpt_path:
            for p in glob.glob(f"./rank*"):
                best_ckpt_path = os.path.join(p, "model_best.pth.tar")
                if os.path.exists(best_ckpt_path):
                    candidate_ckpt_path = best_ckpt_path
                    break

        if candidate_ckpt_path:
            print("[gpu id:", args.gpu, "]", "=> loading checkpoint '{}'".format(candidate_ckpt_path))
            loc = ""
            if args.gpu is None:
                checkpoint = torch.load(candidate_ckpt_path)
            else:
                # Map model to be loaded to specified single gpu.
                if args.device == "npu":
                    loc = "npu:{}".format(args.gpu)
                else:
                    loc = "cuda:{}".format(args.gpu)
                checkpoint = torch.load(candidate_ckpt_path, map_location=loc)
            print(f"load checkpoint to : {loc}")

            args.start_epoch = checkpoint["epoch"]
            best_acc1 = checkpoint["best_acc1"]
            if args.gpu is not None:
                # best_acc1 may be from a checkpoint from a different GPU
                best_acc1 = best_acc1.to(args.gpu)

            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            print(
                "[gpu id:",
                args.gpu,
                "]",
                "=> loaded checkpoint '{}' (epoch {})".format(candidate_ckpt_path, checkpoint["epoch"]),
            )
        else:
            print("no valid ckpt found to resume.")

    trained = nn.parallel.DistributedDataParallel(model)
    for epoch in range(args.start_epoch, args.epochs):
        train(trained, optimizer, epoch, args)
        acc1 = validate(model)

        # remember best acc@1 and save checkpoint
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)

        # Use device 0 to save model file on each node. The model is saved only when the ACC is escalated.
        if args.rank % ngpus_per_node == 0:
            save_path = f"./rank_{args.rank}"
            if not os.path.exists(save_path):
                os.makedirs(save_path, exist_ok=True)

            modeltmp = model.cpu()
            save_checkpoint(
                {
                    "epoch": epoch + 1,
                    "arch": args.arch,
                    "state_dict": modeltmp.state_dict(),
                    "best_acc1": best_acc1,
                    "optimizer": optimizer.state_dict(),
                },
                is_best,
                save_path=save_path,
            )
            modeltmp.to(CALCULATE_DEVICE)
    print(json.dumps({"start_epoch": args.start_epoch, "weights": model.weight.tolist()}))


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar", save_path="./"):
    if is_best:
        target_path = os.path.join(save_path, "model_best.pth.tar")
        torch.save(state, target_path)
        print(f"save ckpt to {target_path} done. Best epoch for now is :{state['epoch']}")


def samples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around four centres."""
    chosen = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=chosen)
    centres = torch.eye(4, 8)
    return centres[labels] + 0.7 * torch.randn(count, 8, generator=chosen), labels


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, args: argparse.Namespace) -> None:
    for batch in range(BATCHES):
        points, labels = samples((epoch * BATCHES + batch) * args.world_size + args.rank, BATCH_SIZE)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()


def validate(model: nn.Module) -> torch.Tensor:
    points, labels = samples(1 << 40, 4000)
    with torch.no_grad():
        return (model(points).argmax(1) == labels).float().mean() * 100


main()
