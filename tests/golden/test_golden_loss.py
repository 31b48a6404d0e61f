"""Box similarity, target assignment, loss and gradients."""

import torch
from golden.cases import close, each
from made_heads import assign_targets, losses, only_valid

from boltbox.detector.model.assigner import YOLOv5Assigner
from boltbox.detector.model.boxes import iou_cxcywh
from boltbox.detector.model.loss import DetectionLoss


@each("ciou")
def test_box_similarity(case):
    for kind in ("iou", "ciou"):
        pred = case.tensor("in_pred_xywh").requires_grad_()
        value = iou_cxcywh(pred, case.tensor("in_target_xywh"), kind)
        value.sum().backward()
        close(value.detach(), case[f"out_{kind}"], 1e-5)
        close(pred.grad, case[f"out_grad_{kind}"], 1e-6, 1e-3)


@each("loss")
def test_loss(case):
    if case.meta.get("gr", 1.0) != 1 or case.meta.get("autobalance"):
        return  # which no option of YOLOv5's training sets
    meta = case.meta
    hyp = case.meta["hyp_used"]
    anchors = case.tensor("in_anchors_grid")
    levels = len(anchors)
    loss = DetectionLoss(
        meta["nc"],
        meta["strides"],
        YOLOv5Assigner(hyp["anchor_t"]),
        **{k: hyp[k] for k in ("box", "obj", "cls", "cls_pw", "obj_pw", "fl_gamma")},
        label_smoothing=meta["label_smoothing"],
        shared_cell="best" if meta.get("sort_obj_iou") else "last",
    )
    for call in range(meta["calls"]):
        suffix = f"_call{call}" if meta["calls"] > 1 else ""
        raw = [case.tensor(f"in_pred_{i}{suffix}").float().requires_grad_() for i in range(levels)]
        targets = case.tensor(f"in_targets{suffix}")

        assigned = assign_targets(
            targets, anchors, [(r.shape[2], r.shape[3]) for r in raw], hyp["anchor_t"]
        )
        for i, r in enumerate(map(only_valid, assigned)):
            assert torch.equal(
                torch.stack((r.image, r.anchor, r.row, r.column), 1),
                case.tensor(f"out_idx_{i}{suffix}").long(),
            )
            assert torch.equal(r.cls, case.tensor(f"out_tcls_{i}{suffix}").long())
            close(r.box, case[f"out_tbox_{i}{suffix}"].reshape(-1, 4), 1e-6)
            close(anchors[i][r.anchor], case[f"out_anch_{i}{suffix}"].reshape(-1, 2), 0)

        total, parts = losses(loss, raw, targets, anchors)
        total.backward()
        close(total.item(), case[f"out_loss{suffix}"].item(), 0, 1e-5)
        close(parts, case[f"out_items_box_obj_cls{suffix}"], 1e-9, 1e-5)
        close(loss.balance, case[f"out_balance{suffix}"][:levels], 1e-6, 1e-5)
        for i, r in enumerate(raw):
            wanted = case[f"out_grad_{i}{suffix}"]
            close(r.grad, wanted, 1e-8 + 1e-5 * abs(wanted).max())
