resource "helm_release" "kuberay" {
  name             = "kuberay-operator"
  repository       = "https://ray-project.github.io/kuberay-helm/"
  chart            = "kuberay-operator"
  version          = var.kuberay_version
  namespace        = "kuberay"
  create_namespace = true
  atomic           = true
  values           = [yamlencode({ nodeSelector = { "bertmill/pool" = "head" } })]
  depends_on       = [aws_eks_node_group.this, aws_eks_addon.coredns]
}

resource "helm_release" "autoscaler" {
  name       = "cluster-autoscaler"
  repository = "https://kubernetes.github.io/autoscaler"
  chart      = "cluster-autoscaler"
  version    = var.autoscaler_chart_version
  namespace  = "kube-system"
  atomic     = true
  values = [yamlencode({
    autoDiscovery = { clusterName = aws_eks_cluster.this.name }
    awsRegion     = var.region
    nodeSelector  = { "bertmill/pool" = "head" }
    rbac          = { serviceAccount = { name = aws_eks_pod_identity_association.autoscaler.service_account } }
    # To scale from zero, the autoscaler reads labels, taints and tags of a group from EKS.
    extraArgs = { expander = "least-waste", "scale-down-unneeded-time" = "5m" }
  })]
  depends_on = [aws_eks_node_group.this, aws_eks_addon.coredns]
}

resource "helm_release" "device_plugin" {
  count      = var.gpu_nodes > 0 ? 1 : 0
  name       = "nvidia-device-plugin"
  repository = "https://nvidia.github.io/k8s-device-plugin"
  chart      = "nvidia-device-plugin"
  version    = var.device_plugin_version
  namespace  = "kube-system"
  values = [yamlencode({
    nodeSelector = { "bertmill/pool" = "gpu" }
    tolerations  = [{ operator = "Exists" }]
    affinity     = null
  })]
  depends_on = [aws_eks_node_group.this]
}

resource "helm_release" "efa_plugin" {
  count      = var.gpu_nodes > 0 && var.efa_cards > 0 ? 1 : 0
  name       = "aws-efa-k8s-device-plugin"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-efa-k8s-device-plugin"
  version    = var.efa_plugin_version
  namespace  = "kube-system"
  values = [yamlencode({
    nodeSelector = { "bertmill/pool" = "gpu" }
    tolerations  = [{ operator = "Exists" }]
  })]
  depends_on = [aws_eks_node_group.this]
}
