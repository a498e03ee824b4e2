resource "aws_eks_cluster" "this" {
  name     = var.name
  role_arn = aws_iam_role.control_plane.arn
  version  = var.kubernetes_version

  enabled_cluster_log_types = ["api", "audit", "authenticator"]

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = [for subnet in aws_subnet.private : subnet.id]
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.api_cidrs
  }

  depends_on = [aws_iam_role_policy_attachment.control_plane]
}

# These replace the unmanaged copies of three add-ons in a new cluster.
resource "aws_eks_addon" "this" {
  for_each                    = toset(["vpc-cni", "kube-proxy", "eks-pod-identity-agent"])
  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.value
  resolve_conflicts_on_create = "OVERWRITE"
  # Otherwise the network policies of cluster/kuberay have no effect.
  configuration_values = each.value == "vpc-cni" ? jsonencode({ enableNetworkPolicy = "true" }) : null
}

# This one needs nodes. The others must exist before the nodes.
resource "aws_eks_addon" "coredns" {
  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = "coredns"
  resolve_conflicts_on_create = "OVERWRITE"
  depends_on                  = [aws_eks_node_group.this]
}

resource "aws_eks_node_group" "this" {
  for_each        = module.plan.node_groups
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = each.key
  node_role_arn   = aws_iam_role.nodes.arn
  # GPU nodes share one zone, because their GPUs communicate all the time. The others use any zone.
  subnet_ids     = startswith(each.key, "gpu") ? [aws_subnet.private[local.zones[var.gpu_zone]].id] : [for subnet in aws_subnet.private : subnet.id]
  capacity_type  = each.value.capacity
  instance_types = each.value.instance_types
  ami_type       = each.value.ami_type
  labels         = each.value.labels
  tags           = each.value.tags

  launch_template {
    id      = aws_launch_template.nodes[each.key].id
    version = aws_launch_template.nodes[each.key].latest_version
  }

  scaling_config {
    min_size     = each.value.min
    max_size     = each.value.max
    desired_size = each.value.min
  }

  dynamic "taint" {
    for_each = each.value.taints
    content {
      key    = taint.key
      value  = taint.value
      effect = "NO_SCHEDULE"
    }
  }

  lifecycle {
    # The autoscaler sets it.
    ignore_changes = [scaling_config[0].desired_size]
  }

  depends_on = [aws_iam_role_policy_attachment.nodes, aws_eks_addon.this]
}
