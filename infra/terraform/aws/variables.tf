variable "region" {
  description = "AWS region."
  type        = string
}

variable "name" {
  description = "Name of the cluster and prefix of what belongs to it."
  type        = string
  default     = "bertmill"
}

variable "bucket" {
  description = "Name of the bucket to make, unique in the world."
  type        = string
}

variable "kubernetes_version" {
  description = "Version of the EKS control plane."
  type        = string
  default     = "1.34"
}

variable "kuberay_version" {
  description = "Version of the KubeRay operator's chart; authOptions needs 1.5.1 or newer."
  type        = string
  default     = "1.7.0"
}

variable "autoscaler_chart_version" {
  description = "Version of the cluster autoscaler's chart."
  type        = string
  default     = "9.50.1"
}

variable "device_plugin_version" {
  description = "Version of NVIDIA's device plugin chart."
  type        = string
  default     = "0.17.4"
}

variable "cpu_nodes" {
  description = "Most CPU worker nodes at once."
  type        = number
  default     = 8
}

variable "gpu_nodes" {
  description = "Most GPU worker nodes at once; the account's quota must allow them."
  type        = number
  default     = 1
}

variable "spot" {
  description = "Whether spot twins of the worker groups are made."
  type        = bool
  default     = true
}

variable "api_cidrs" {
  description = "Networks from which the Kubernetes API can be reached."
  type        = list(string)
}
