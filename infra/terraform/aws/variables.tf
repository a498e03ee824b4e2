variable "region" {
  description = "AWS region."
  type        = string
}

variable "name" {
  description = "Name of the cluster and prefix of its resources."
  type        = string
  default     = "bertmill"
}

variable "bucket" {
  description = "Globally unique name of the bucket to create."
  type        = string
}

variable "kubernetes_version" {
  description = "Version of the EKS control plane."
  type        = string
  default     = "1.34"
}

variable "kuberay_version" {
  description = "Version of the KubeRay operator's chart (preRunningDeadlineSeconds needs 1.6.0 or newer)."
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
  description = "Maximum number of CPU worker nodes."
  type        = number
  default     = 8
}

variable "gpu_nodes" {
  description = "Maximum number of GPU worker nodes. The account's quota must allow them."
  type        = number
  default     = 1
}

variable "gpu_instance_type" {
  description = "Instance type of the GPU workers. cluster/kuberay requests 8 GPUs, 88 CPUs and 900 GiB of memory."
  type        = string
  default     = "p4d.24xlarge"
}

variable "efa_cards" {
  description = "EFA network cards of a GPU worker: 4 of p4d.24xlarge, 32 of p5.48xlarge, 0 for plain TCP."
  type        = number
  default     = 4
}

variable "efa_plugin_version" {
  description = "Version of the chart of AWS's EFA device plugin."
  type        = string
  default     = "v0.5.7"
}

variable "local_nvme" {
  description = "Whether CPU workers have local disks for what Ray spills. GPU workers always use theirs."
  type        = bool
  default     = false
}

variable "gpu_zone" {
  description = "Which of the region's first three zones has the GPU workers: 0, 1 or 2. Not every zone has every type."
  type        = number
  default     = 0
  validation {
    condition     = contains([0, 1, 2], var.gpu_zone)
    error_message = "gpu_zone: 0, 1 or 2."
  }
}

variable "spot" {
  description = "Whether to create spot versions of the worker groups, too."
  type        = bool
  default     = true
}

variable "old_version_days" {
  description = "Days for which overwritten and deleted objects can be restored."
  type        = number
  default     = 7
}

variable "stale_upload_days" {
  description = "Days after which the parts of an unfinished upload are deleted."
  type        = number
  default     = 2
}

variable "run_days" {
  description = "Days after which the remaining files of a run move to cheaper storage."
  type        = number
  default     = 30
}

variable "api_cidrs" {
  description = "Networks from which the Kubernetes API can be reached."
  type        = list(string)
}
